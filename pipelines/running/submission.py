"""Submits a recipe: starts a run in a process of its own, which continues when its submitter ends, and reports its state.

run = submit(recipe, lake="lake", select=["+curated_interactions"])
outcome = run.wait()                           # or Run.open("lake", run.id), from any other process"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from model_ops.files import write_json
from model_ops.jobs import Misuse
from pipelines.contract import Recipe, load_recipe
from pipelines.running.outcome import Outcome, State
from pipelines.storage import keep_submitted, lake_location, require_writable
from resources.lake import LakeError, LakeLayout
from resources.launching import REQUEST, SUBMITTED, child_environment, is_copied, is_same_process, python_module

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_START = 60
"""Seconds after which a run without an event counts as never started: its submitter was killed before it started the
process."""
KEPT_RUNS = 50
"""Folders of ended runs that a lake keeps, newest first."""
STARTED, EXIT, EVENTS, LOG = "started.json", "exit.json", "events.jsonl", "run.log"


class UnknownRunError(Misuse):
    """The lake has no run of this id."""


def submit(
    recipe: Recipe | str | Path,
    lake: str | Path | None = None,
    select: Sequence[str] | None = None,
    partition: date | None = None,
) -> Run:
    """Starts a run of a recipe and returns at once.

    recipe: a recipe, or the path of its file. lake: a directory; by default MILLRACE_LAKE or, for a recipe file, ./lake next
    to it. select: part of the graph, in Dagster's selection syntax; by default all of it. partition: one day (UTC); by default
    all days found. Raises RecipeError, LakeError or StorageError if the run cannot be started. An error that only the run can
    find, such as a selection without assets, ends it with the state `refused`."""
    if isinstance(recipe, Recipe):
        if not lake and not os.environ.get("MILLRACE_LAKE"):
            raise LakeError("no lake is named, and a recipe that is not a file has no default: give lake= or set MILLRACE_LAKE")
        place = LakeLayout.open(lake_location(Path("recipe"), lake))
        require_writable(place.root)
        path = keep_submitted(place, recipe.workload, recipe.digest, recipe.as_text())
    else:
        path = Path(recipe).resolve()
        load_recipe(Path(recipe))  # report an error in the recipe before anything is started
        place = LakeLayout.open(lake_location(path, lake))
        require_writable(place.root)
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    folder = runs_of(place) / run_id
    folder.mkdir(parents=True)
    request = {
        "id": run_id,
        "recipe": str(path),
        "lake": str(place.root),
        "select": None if select is None else list(select),
        "partition": partition.isoformat() if partition else None,
        "folder": str(folder),
    }
    write_json(folder / REQUEST, request)
    _remove_old(folder.parent)
    return Run(run_id, folder, start_process(request, folder))


def start_process(request: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    """Starts the process of a run, which continues without its parent. Its events and output go to `folder`."""
    (folder / EVENTS).touch()
    with (folder / LOG).open("w") as printed:
        return subprocess.Popen(
            python_module("pipelines.running.run", json.dumps(request)),
            env=child_environment(MILLRACE_PROGRESS=str(folder / EVENTS), PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )


@dataclass
class Run:
    """A submitted run. `process` is set only in the process that submitted it."""

    id: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    _asked_to_stop: bool = field(default=False, repr=False)

    @classmethod
    def open(cls, lake: str | Path | LakeLayout, run_id: str) -> Run:
        """A run by its id. Raises UnknownRunError, or LakeError if there is no lake."""
        place = lake if isinstance(lake, LakeLayout) else LakeLayout.open(lake, create=False)
        folder = runs_of(place) / Path(run_id).name
        if not (folder / REQUEST).is_file():
            raise UnknownRunError(f"{place.place} has no run {run_id!r}: use the id of the Run that submit() returned")
        return cls(run_id, folder)

    @property
    def state(self) -> State:
        """The run's state now."""
        code = self.poll()
        if code is None:
            return "running" if (self.folder / STARTED).exists() else "starting"
        outcome = Outcome()
        outcome.end(code, self.log, self._asked_to_stop)
        return outcome.state

    @property
    def log(self) -> Path:
        """The process's output, including Dagster's log."""
        return self.folder / LOG

    @property
    def pid(self) -> int | None:
        """The run's process id; None before it has begun."""
        if self.process is not None:
            return self.process.pid
        began = _content(self.folder / STARTED)
        return int(began["process"].partition("@")[0]) if began else None

    @property
    def current_step(self) -> str | None:
        """The step that it is at; None before the first, between two, and after the last."""
        outcome = Outcome()
        with suppress(OSError), (self.folder / EVENTS).open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n") and '"step"' in line:
                    outcome.hear(json.loads(line))
        return outcome.current_step

    def poll(self) -> int | None:
        """The exit code (below 0: the signal that ended it); None while the run continues."""
        if self.process is not None:
            return self.process.poll()
        if (ended := _content(self.folder / EXIT)) is not None:
            return int(ended["exit_code"])
        began = _content(self.folder / STARTED)
        if began is None:
            waited = time.time() - self.folder.stat().st_mtime
            return None if waited < SECONDS_TO_START else -signal.SIGKILL
        if is_same_process(began["process"]) and not is_copied(self.folder):
            return None
        ended = _content(self.folder / EXIT)  # it may have ended between the two checks
        return int(ended["exit_code"]) if ended else -signal.SIGKILL

    def events(self) -> Iterator[dict[str, Any]]:
        """The run's events from its beginning to its end: steps, progress, checks, notes. Waits for new events."""
        partial = ""
        with (self.folder / EVENTS).open(encoding="utf-8") as lines:
            while True:
                has_ended = self.poll() is not None
                *whole, partial = (partial + lines.read()).split("\n")
                yield from map(json.loads, whole)
                if has_ended:
                    return
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits for the end and returns the outcome. Raises TimeoutError after `timeout` seconds; the run continues."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"run {self.id} has not ended after {timeout:g} s; it goes on")
            time.sleep(SECONDS_BETWEEN_LOOKS)
        outcome = Outcome()
        for event in self.events():
            outcome.hear(event)
        outcome.end(code, self.log, self._asked_to_stop)
        return outcome

    def stop(self) -> None:
        """Asks the run to stop: the current step saves its state first. Running the recipe again continues it."""
        self._asked_to_stop = True
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
        elif self.poll() is None and (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)


def runs_of(lake: LakeLayout) -> Path:
    """The folder with one folder for each run that was submitted to a lake."""
    home = Path(os.environ.get("MILLRACE_HOME") or lake.dagster_home).expanduser().absolute()
    return home / SUBMITTED


def others_running(folder: Path) -> list[Run]:
    """The runs on a lake that are at work, besides the run of this folder. A run outlives the command that started it."""
    runs = [Run(other.name, other) for other in sorted(folder.parent.iterdir()) if other != folder and other.is_dir()]
    return [run for run in runs if run.pid is not None and run.poll() is None]


def _content(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _remove_old(folder: Path) -> None:
    """Keeps the newest KEPT_RUNS folders of ended runs."""
    ended = [run for run in sorted(folder.iterdir(), reverse=True) if Run(run.name, run).poll() is not None]
    for old in ended[KEPT_RUNS:]:
        shutil.rmtree(old, ignore_errors=True)
