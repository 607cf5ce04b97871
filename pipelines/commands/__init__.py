"""The commands of `millrace`, one file for each group of the help text. A command parses its options, opens the lake, calls one
function of a room below and prints the result; libraries are imported inside of it, so that `millrace --help` is quick. Work
does not belong here. cli.py gathers the files."""
