"""The `millrace` command. Exit codes: 0 success, 1 a check failed, 2 misuse, 130 interrupted, 141 the output was closed. Errors
that a user can fix are one sentence with the remedy; any other is a bug and shows its traceback. Commands are in
pipelines/commands and import what is heavy when they run."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from model_ops.jobs import UserError
from model_ops.machine import end_process

if TYPE_CHECKING:
    import typer


def main() -> NoReturn:
    """Entry point: turns errors that a user can fix into one sentence and an exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # also if a shell started this in the background
    try:
        code = _carry_out()
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C while the interpreter ends would print a traceback
    end_process(code)


def _carry_out() -> int | str | None:
    """Runs the command named on the command line. Returns the exit code; raises what is a bug."""
    try:
        try:
            _whole_app()()  # the imports too, so that Ctrl-C during them is handled
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as end:
        closed = isinstance(end.__context__, BrokenPipeError)  # typer and rich exit where they meet one
        return _nobody_reads() if closed else end.code
    except Exception as error:
        if str(error) == "Query interrupted":  # what DuckDB raises for Ctrl-C
            return 130
        ending = _ending(error)
        if ending is None:
            raise
        from pipelines.terminal import say_error

        code, sentence = ending
        say_error(sentence)
        return code
    return 0


def _whole_app() -> typer.Typer:
    """The typer app with all commands: importing a file adds its commands, in the order of the help text."""
    from pipelines.terminal import app

    for name in ("prepare", "build", "ask", "release", "serve", "erase", "describe"):
        import_module(f"pipelines.commands.{name}")

    return app


def __getattr__(name: str) -> typer.Typer:
    """`from pipelines.cli import app` imports the commands, and a plain import of this file does not."""
    if name == "app":
        return _whole_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _ending(error: Exception) -> tuple[int, str] | None:
    if isinstance(error, UserError):
        return error.exit_code, str(error)
    from pipelines.storage import storage_sentence

    # Dagster's home is known here once its history was opened; its errors name no file.
    home = os.environ.get("DAGSTER_HOME")
    refused = storage_sentence(error, Path(home) if home else None)
    if refused is None and isinstance(error, OSError):
        refused = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return None if refused is None else (1, refused)


def _nobody_reads() -> int:
    """Ends silently when the reader of the output has closed it (`millrace ... | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


if __name__ == "__main__":
    main()
