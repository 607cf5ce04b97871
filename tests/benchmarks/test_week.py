"""The parts of the simulated week that need no server: its clock, and who is killed."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from benchmarks.simulated_clock import SimulatedClock
from benchmarks.week_kills import Kills
from resources.launching.processes import child_environment

SAYS_TIMES = """
import datetime, logging, sys, time
while sys.stdin.readline():
    now = datetime.datetime.now(datetime.UTC)
    times = [now.timestamp(), time.time(), time.time_ns() / 1e9, datetime.datetime.now().timestamp(),
             logging.LogRecord("", 1, "", 1, "", (), None).created, datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp()]
    print(time.monotonic(), datetime.date.today() == datetime.date.fromtimestamp(times[1]), *times, flush=True)
"""


@pytest.fixture
def clock(tmp_path, monkeypatch):
    made = SimulatedClock(tmp_path / "clock", datetime(2031, 6, 1, 12, tzinfo=UTC))
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def test_the_clock_of_children_jumps_with_the_benchmark_s(clock):
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", SAYS_TIMES],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for moment in (clock.now() + timedelta(seconds=1), datetime(2031, 6, 8, 1, tzinfo=UTC)):
            clock.jump_to(moment)
            child.stdin.write("\n")
            child.stdin.flush()
            monotonic, same_day, *times = child.stdout.readline().split()
            assert same_day == "True" and abs(float(monotonic) - time.monotonic()) < 5
            assert all(abs(float(each) - moment.timestamp()) < 5 for each in times)
    finally:
        child.stdin.close()
        child.wait(5)
        child.stdout.close()


def test_the_clock_does_not_go_back(clock):
    with pytest.raises(ValueError, match="has passed"):
        clock.jump_to(clock.now() - timedelta(hours=1))


@pytest.fixture
def workers():
    """Two processes that look like training workers; only the first is of the week."""
    made = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-m", "model_ops.worker", mark])
        for mark in ("of-this-week-4711", "of-somebody-else")
    ]
    yield made
    for each in made:
        each.kill()
        each.wait()


def test_only_workers_of_the_week_are_killed_and_only_as_often_as_planned(workers, monkeypatch):
    monkeypatch.setattr("benchmarks.week_kills.LOOKS_EVERY_S", 0.0)
    kills = Kills(seed=1, days=3, mark="of-this-week-4711", server=0, daemon=0, worker=1)
    kills._after_s = 0.0
    until = time.monotonic() + 5
    while not kills.done and time.monotonic() < until:
        kills.at_night(2)
    assert kills.done == [{"kind": "worker", "day": 2, "process": "worker"}] and kills.count("worker") == 1
    assert workers[0].wait(5) == -9 and psutil.pid_exists(workers[1].pid) and workers[1].poll() is None


def test_the_plan_follows_from_the_seed_and_what_is_not_there_is_said():
    kills = Kills(seed=7, days=7, mark="nobody-has-this-text-4712")
    assert kills.planned == Kills(seed=7, days=7, mark="x").planned != Kills(seed=8, days=7, mark="x").planned
    assert sorted(each.kind for each in kills.planned) == ["daemon", "daemon", "server", "server"]
    first = kills.planned[0]
    kills.while_asked(first.day, first.share - 0.001)
    assert kills.done == []
    kills.while_asked(7, 1.0)
    assert len(kills.done) == 4 and kills.count("server") == 0 and not kills.planned
