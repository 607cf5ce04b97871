"""The bound on a test's CPU time, and what is made once for all processes of a run."""

import multiprocessing
import os
import time
from unittest import mock

import pytest

from tests import cpu_time
from tests.long_files import LONG_FILES, TESTS
from tests.once import made_once

WORKS = """
import pytest
from tests import cpu_time

def work(seconds):
    cpu_time.cpu_seconds.work(seconds)

@pytest.fixture(scope="module")
def shared():
    work(30)

@pytest.fixture
def alone():
    work({alone})

def test_shared(shared):
    work(5)

def test_call(alone, shared):
    work({call})

@pytest.mark.slow
def test_marked():
    work(100)
"""


class Clock:
    """Stands in for cpu_seconds: time passes where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("call", "alone", "load", "slowness", "said"),
    [
        (9.9, 0, 0.1, 1.0, None),
        (10.1, 0, 0.1, 1.0, "10.1 s of CPU time; *`slow` may take 10, here 1.00 times as much"),
        (6, 6, 0.1, 1.0, "12.0 s of CPU time; *"),
        (19.9, 0, 100, 1.5, None),
        (20.1, 0, 100, 1.5, "20.1 s of CPU time; * here 2.00 times as much"),
        (14.9, 0, 0.1, 1.5, None),
        (15.1, 0, 0.1, 1.5, "15.1 s of CPU time; * here 1.50 times as much"),
        (9.9, 0, 0.1, 0.5, None),
    ],
)
def test_a_test_without_a_mark_may_work_so_long_alone(pytester, call, alone, load, slowness, said):
    """A crowded or slow machine allows up to twice as much; what several tests share counts for none of them."""
    pytester.makeini("[pytest]\ncpu_seconds = 10\nmarkers = slow")
    pytester.makepyfile(WORKS.format(call=call, alone=alone))
    with (
        mock.patch.object(cpu_time, "cpu_seconds", Clock()),
        mock.patch.object(cpu_time, "slowness", lambda: slowness),
        mock.patch.object(os, "getloadavg", lambda: (load, load, load)),
    ):  # ends with the test's own work: the plugin that is tested watches this test, too
        result = pytester.runpytest_inprocess("-p", "tests.cpu_time", "-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2 if said else 3, failed=1 if said else 0)
    if said:
        result.stdout.fnmatch_lines(["*_ test_call _*", said])


def test_the_small_piece_of_work_is_measured_once():
    cpu_time.slowness.cache_clear()
    before = time.thread_time()
    found = cpu_time.slowness()
    spent = time.thread_time() - before
    assert 0.2 < found < 20 and spent < 5 * 20 * cpu_time.REFERENCE_SECONDS
    assert cpu_time.slowness() == found and time.thread_time() - before < 1.5 * spent


def test_children_count():
    before = cpu_time.cpu_seconds()
    child = multiprocessing.get_context("fork").Process(target=lambda: sum(range(3_000_000)))
    child.start()
    child.join()
    assert cpu_time.cpu_seconds() - before > 0.01


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """Stands in for tmp_path_factory: the folder of a process that belongs to a run of several."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")

    class Factory:
        def getbasetemp(self):
            return tmp_path / f"popen-{os.getpid()}"

    return Factory()


def test_what_is_made_once_is_made_by_the_first_process_that_asks(run_folder, tmp_path):
    def make(folder):
        with (tmp_path / "made").open("a") as made:
            made.write("once\n")
        (folder / "file").write_text("x")

    def ask():
        assert (made_once(run_folder, "thing", make) / "file").read_text() == "x"

    processes = [multiprocessing.get_context("fork").Process(target=ask) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "made").read_text() == "once\n"


def test_what_could_not_be_made_is_made_by_the_next_who_asks(run_folder):
    def fails(folder):
        (folder / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once(run_folder, "thing", fails)
    made = made_once(run_folder, "thing", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_the_long_files_are_there():
    assert [name for name in LONG_FILES if not (TESTS / name).is_file()] == []
