"""The `millrace` command. Exit codes: 0 fine, 1 found wrong, 2 misuse, 130 interrupted.

Every error a person can mend is one sentence that names the thing and the remedy; anything else is a bug and shows its
traceback. The commands are in pipelines/commands; heavy libraries are imported by the command that needs them.
"""

from __future__ import annotations

import signal
import sys

from pipelines.commands import ask, build, describe, prepare, release  # noqa: F401 - importing a file adds its commands
from pipelines.commands.terminal import app, say_error


def main() -> None:
    """Entry point: turns the errors that a person can mend into one sentence and an exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # also where a shell started this in the background
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        say_error(error)
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    """The exit code of an error that a person can mend; None for a bug."""
    from pipelines.mistakes import FOUND_WRONG, MISUSE  # imports half of the project: only once something went wrong

    if isinstance(error, MISUSE):
        return 2
    return 1 if isinstance(error, (*FOUND_WRONG, OSError)) else None


if __name__ == "__main__":
    main()
