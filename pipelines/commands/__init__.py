"""The commands of `millrace`, one file for each group of the help text."""
