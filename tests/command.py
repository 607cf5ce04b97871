"""Runs the `millrace` command in the tests' own process: importing torch and Dagster anew costs seconds each time.

    done = millrace("sql", "select 1", "--lake", lake, check=0)       # returncode, stdout, stderr

`millrace run` starts a process for its run; here that run, too, takes place in this process, through the same `main`. Tests of
kills, signals and exit codes of real processes start one: millrace_process, with the same arguments and result.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.reports import process_report

PROJECT = Path(__file__).resolve().parents[1]
COLUMNS = 160


def millrace(*words: str | Path, check: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command; fails the test unless its exit code is `check`. An error that is a bug of the command is raised."""
    from model_ops.machine.precision import Speeds
    from pipelines import cli
    from pipelines.planning.stage_times import StageFacts
    from pipelines.running import submission as submit

    with (
        _as_process(["millrace", *map(str, words)], {**os.environ, **environment}) as (out, error),
        _consoles(),
        mock.patch.object(submit, "start_process", _RunInThisProcess),
        mock.patch("pipelines.planning.stage_times.cpu_speeds", lambda threads: Speeds(50.0, 20.0)),
        mock.patch("pipelines.planning.stage_times.stage_facts", lambda recipe, device: StageFacts()),
    ):  # seconds for each new lake
        code = cli._carry_out()
    code = code if isinstance(code, int) else int(code is not None)
    return _checked(subprocess.CompletedProcess(list(words), code, out.getvalue(), error.getvalue()), check)


def millrace_process(*words: str | Path, check: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, words)],
        cwd=PROJECT,
        env={**os.environ, "COLUMNS": str(COLUMNS), **environment},
        capture_output=True,
        text=True,
    )
    return _checked(done, check)


def _checked(done: subprocess.CompletedProcess[str], check: int | None) -> subprocess.CompletedProcess[str]:
    if check is not None:
        assert done.returncode == check, process_report(done)
    return done


@contextlib.contextmanager
def _as_process(
    arguments: list[str], environment: dict[str, str], output: io.TextIOBase | None = None
) -> Iterator[tuple[io.TextIOBase, io.TextIOBase]]:
    """Arguments, environment, folder, output and signal handlers as a process has them; afterwards those of before."""
    out, error = output or io.StringIO(), output or io.StringIO()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        with (
            mock.patch.object(sys, "argv", arguments),
            mock.patch.dict(os.environ, environment, clear=True),
            contextlib.chdir(PROJECT),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(error),
        ):
            yield out, error
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _consoles() -> Iterator[None]:
    """Both consoles as wide as the commands' own processes find the terminal to be."""
    from pipelines.terminal.shared_options import console, errors

    with mock.patch.object(console, "_width", COLUMNS), mock.patch.object(errors, "_width", COLUMNS):
        yield


class _RunInThisProcess:
    """What `pipelines.running.submission` needs of a process, for a run that has ended when this is made."""

    def __init__(self, request: dict[str, object], folder: Path):
        from pipelines.running import run
        from pipelines.running import submission as submit

        self.pid = os.getpid()
        events = folder / submit.EVENTS
        events.touch()
        environment = {**os.environ, "MILLRACE_PROGRESS": str(events)}
        with (folder / submit.LOG).open("w") as log, _as_process(["run", json.dumps(request)], environment, log):
            try:
                self.returncode = run.main()
            except Exception:
                traceback.print_exc()
                self.returncode = 1

    def poll(self) -> int:
        return self.returncode
