"""Kinds of evaluation tasks: one file each with its typed item and its scorer; asking models, unit tests, the judge."""
