"""What keeps servers running: starts again what ends, with pauses; ends everything in order, also when it is killed itself."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from pipelines.keeping import keeper
from pipelines.keeping.keeper import Keeper, Server
from pipelines.keeping.managed_process import KEPT, ManagedProcess, RotatedLog
from resources.launching.processes import has_run_since
from tests.reports import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("keeper")]

SLEEPS = ["sleep", "600"]


def shell(text):
    return ["/bin/sh", "-c", text]


class Run:
    """A keeper in a thread of its own."""

    def __init__(self, folder, *servers):
        self.said, self.stop, self.hurry = [], threading.Event(), threading.Event()
        self.keeper = Keeper(
            [
                Server(name, command, os.environ, folder / f"{name}.log", **{"stop_s": 5.0, **more})
                for name, command, more in servers
            ],
            self.said.append,
            self._changed,
        )
        self.states = self.keeper.states()
        self.thread = threading.Thread(target=self.keeper.run, args=(self.stop, self.hurry))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()

    def _changed(self):
        self.states = self.keeper.states()

    def state(self, name):
        """As the keeper told it last: `millrace up` writes the same into its file."""
        return next(state for state in self.states if state.name == name)


def gone(pid):
    return not has_run_since(pid, time.time())


def test_a_server_that_was_killed_is_started_again_and_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.05)
    with Run(tmp_path, ("sleeper", SLEEPS, {}), ("other", SLEEPS, {})) as run:
        until(lambda: run.state("sleeper").is_running and run.state("other").is_running)
        before, other = run.state("sleeper").pid, run.state("other").pid
        os.kill(before, signal.SIGKILL)
        until(lambda: run.state("sleeper").is_running and run.state("sleeper").pid != before)
        assert run.state("sleeper").restarts == 1 and run.state("other").pid == other
        assert run.said == ["sleeper ended by SIGKILL and is started again"]
    assert gone(other) and not run.state("sleeper").is_running
    assert run.state("other").why_not == "it was stopped"


def test_a_server_that_ends_at_once_every_time_is_no_tight_loop_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(keeper, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(keeper, "LOOKS_EVERY_S", 0.02)
    broken = shell("echo first; printf '\\033[31mno database here\\033[0m\\n' >&2; exit 3")
    with Run(tmp_path, ("broken", broken, {})) as run:
        until(lambda: run.state("broken").restarts >= 6)
    assert run.said == [
        "broken ended with exit code 3 and is started again; its last lines: first | no database here",
        "broken ended with exit code 3, the 5th time in a row, and is started again after pauses of up to 0.1 s; its last lines: "
        f"first | no database here (log: {tmp_path / 'broken.log'})",
    ]
    assert (tmp_path / "broken.log").read_text().count("no database here") >= 6


def test_pauses_grow_and_are_short_again_after_a_steady_time(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now[0])
    run = keeper._ServerRun(
        Server("a", SLEEPS, os.environ, tmp_path / "a.log"), ManagedProcess(SLEEPS), RotatedLog(tmp_path / "a.log")
    )
    subject = Keeper([], lambda sentence: None, lambda: None)
    pauses = []
    for _ in range(8):
        run.began_s = now[0] - 1
        subject._ended(run)
        pauses.append(run.ends_in_a_row.ends_at - now[0])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    run.began_s = now[0] - keeper.STEADY_S - 1
    subject._ended(run)
    assert run.ends_in_a_row.ends_at - now[0] == 1


def test_a_command_that_cannot_be_run_says_so(tmp_path):
    with Run(tmp_path, ("absent", [str(tmp_path / "nothing")], {})) as run:
        until(lambda: run.said)
    assert "cannot be run (No such file or directory)" in run.said[0]


def test_a_machine_that_has_no_process_left_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "FIRST_PAUSE_S", 0.05)
    start, refused = ManagedProcess.start, [OSError(11, "Resource temporarily unavailable")]
    monkeypatch.setattr(
        ManagedProcess, "start", lambda process: start(process) if not refused else (_ for _ in ()).throw(refused.pop())
    )
    with Run(tmp_path, ("sleeper", SLEEPS, {})) as run:
        until(lambda: run.state("sleeper").is_running)
    assert run.said == ["sleeper cannot be started (Resource temporarily unavailable) and is started again"]


def test_servers_end_last_to_first_and_may_take_their_time(tmp_path):
    slow = shell(
        f"trap 'sleep 0.3; echo $0 >> {tmp_path}/ends; exit 0' TERM; echo up > {tmp_path}/$0.up; while :; do sleep 0.05; done"
    )
    asked = []
    with Run(
        tmp_path,
        ("first", [*slow, "first"], {}),
        ("second", [*slow, "second"], {"ends_first": lambda pid, hurried: asked.append((pid, hurried()))}),
    ) as run:
        until(lambda: (tmp_path / "first.up").exists() and (tmp_path / "second.up").exists() and run.state("second").is_running)
        pid = run.state("second").pid
    assert (tmp_path / "ends").read_text().split() == ["second", "first"]
    assert asked == [(pid, False)]


def test_a_server_that_ignores_sigterm_is_killed_with_what_it_started(tmp_path):
    stubborn = shell(f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; wait; while :; do sleep 1; done")
    with Run(tmp_path, ("stubborn", stubborn, {"stop_s": 0.2})) as run:
        until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text() and run.state("stubborn").is_running)
        pid, child = run.state("stubborn").pid, int((tmp_path / "child").read_text())
        run.hurry.set()
    assert gone(pid) and gone(child)


def test_a_server_that_may_not_run_waits_and_takes_over_later(tmp_path):
    reason = ["another machine runs it"]
    with Run(tmp_path, ("daemon", SLEEPS, {"may_run": lambda: reason[0]})) as run:
        until(lambda: run.said)
        assert run.state("daemon").why_not == "another machine runs it" and not run.state("daemon").is_running
        reason[0] = ""
        until(lambda: run.state("daemon").is_running)
        pid = run.state("daemon").pid
        reason[0] = "another machine runs it"
        until(lambda: gone(pid))
    assert run.said == ["daemon does not run here: another machine runs it"] * 2


KEEPS = """
import os, sys, threading
from pathlib import Path
from pipelines.keeping.keeper import Keeper, Server
folder = Path(sys.argv[1])
keeper = Keeper([Server("a", ["sleep", "600"], os.environ, folder / "a.log")], print, lambda: (folder / "pid").write_text(str(keeper.states()[0].pid)))
keeper.run(threading.Event())
"""


def test_nothing_is_left_when_the_keeper_itself_is_killed(tmp_path):
    keeps = subprocess.Popen([sys.executable, "-c", KEEPS, str(tmp_path)], stdout=subprocess.DEVNULL)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().isdigit())
    pid = int((tmp_path / "pid").read_text())
    assert not gone(pid)
    keeps.kill()
    keeps.wait()
    until(lambda: gone(pid))


def test_a_guard_that_was_killed_leaves_no_server_and_the_lock_is_held_until_then(tmp_path):
    process = ManagedProcess(SLEEPS, log=RotatedLog(tmp_path / "a.log"))
    process.start()
    pid = process.pid
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == 128 + signal.SIGKILL
    until(lambda: gone(pid))
    process.stop(0)


@pytest.mark.parametrize("lines", [1, 300])
def test_a_log_is_rotated_and_keeps_its_newest_lines(tmp_path, lines):
    log = RotatedLog(tmp_path / "a.log", max_bytes=500)
    for number in range(lines):
        log.write(f"line {number:04d}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == (KEPT if lines > 1 else 1)
    assert all(file.stat().st_size <= 510 for file in files)
    assert log.last_lines()[-1] == (tmp_path / "a.log").read_text().splitlines()[-1] == f"line {lines - 1:04d}"


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path):
    log = RotatedLog(tmp_path / "gone" / "a.log")
    log.write("a line")
    assert log.last_lines() == ["a line"]
