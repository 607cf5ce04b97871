"""The `millrace` command. Exit codes: 0 fine, 1 found wrong, 2 misuse, 130 interrupted.

Every error a person can mend is one sentence that names the thing and the remedy; anything else is a bug and shows its
traceback. The commands are in pipelines/commands; heavy libraries are imported by the command that needs them.
"""

from __future__ import annotations

import signal
import sys

from pipelines.commands import ask, build, prepare, release  # noqa: F401 - importing a file adds its commands
from pipelines.commands.terminal import app, say_error


def main() -> None:
    """Entry point: turns the errors that a person can mend into one sentence and an exit code."""
    from pipelines.mistakes import FOUND_WRONG, MISUSE

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # also where a shell started this in the background
    try:
        app()
    except MISUSE as error:
        say_error(error)
        sys.exit(2)
    except FOUND_WRONG as error:
        say_error(error)
        sys.exit(1)
    except OSError as error:
        say_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
