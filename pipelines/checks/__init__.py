"""The checks of `millrace check`: one file for each thing that a recipe depends on."""
