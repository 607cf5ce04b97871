"""Ends a process in the one way that native threads cannot turn into an abort; and a pipe of another one.

    end_process(0)      # exit handlers, flushed output, exit code 0

Threads of Arrow, DuckDB and delta-rs live until the process ends. While the interpreter takes itself apart, a thread that asks
for its lock is ended in the middle of C++, which aborts the process ("terminate called without an active exception", exit code
134) after all work was done: apache/arrow issue 34314, on busy machines most tries of `millrace forget`. So this does what the
interpreter does before that, and leaves.
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import IO, AnyStr, NoReturn


def pipe_of(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    """A pipe of a process: its stdin, stdout or stderr. Raises ValueError if the process was started without it."""
    if stream is None:
        raise ValueError("the process was started without this pipe: start it with stdin=PIPE and stdout=PIPE")
    return stream


def end_process(code: int | str | None, waits: bool = True) -> NoReturn:
    """code: as for sys.exit. waits: for threads that are not daemons."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    if waits:
        threading._shutdown()  # type: ignore[attr-defined]  # private: what Python does itself before its exit functions
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed before Python began
        with suppress(OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
