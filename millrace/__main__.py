"""The command line, as `python -m millrace`."""

from pipelines.cli import main

main()
