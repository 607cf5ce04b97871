"""Losses at a model's head: in chunks, also with a sharded vocabulary, with the fastest exact kernel."""
