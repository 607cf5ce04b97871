"""The recipe: its keys, how its text is read and checked, and how problems are reported."""
