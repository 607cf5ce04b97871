"""The bound on a test's CPU time, and what is made once for all processes of a run."""

import contextlib
import multiprocessing
import os
import time
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest

from tests import cpu_time
from tests.long_files import LONG_FILES, TESTS
from tests.once import made_once

BOUND = 10.0


class Clock:
    """Stands in for cpu_seconds: time passes where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds):
        self.now += seconds


class Item:
    """Of a test of pytest, what the plugin asks for."""

    def __init__(self, marks=()):
        self.config, self.stash, self.marks = self, pytest.Stash(), marks
        cpu_time.pytest_configure(self)

    def getini(self, name):
        return {"cpu_seconds": str(BOUND)}[name]

    def get_closest_marker(self, name):
        return name if name in self.marks else None


def around(hook, work):
    """Runs work() inside of a hook that wraps."""
    next(hook)
    work()
    with contextlib.suppress(StopIteration):
        hook.send(None)


@contextlib.contextmanager
def machine(load=0.1, slowness=1.0):
    """A clock instead of the CPU's, on a machine that is so crowded and so slow. Ends with the test's own work: the plugin that
    is tested watches this test, too."""
    clock = Clock()
    with (
        mock.patch.object(cpu_time, "cpu_seconds", clock),
        mock.patch.object(cpu_time, "slowness", lambda: slowness),
        mock.patch.object(os, "getloadavg", lambda: (load, load, load)),
    ):
        yield clock


def spend(call=0.0, alone=0.0, shared=0.0, marks=(), **kind):
    """Goes through a test whose fixtures and call take so many seconds."""
    item = Item(marks)
    with machine(**kind) as clock:

        def fixtures():
            for scope, seconds in (("module", shared), ("function", alone)):
                around(cpu_time.pytest_fixture_setup(SimpleNamespace(scope=scope), item), partial(clock.work, seconds))

        around(cpu_time.pytest_runtest_setup(item), fixtures)
        around(cpu_time.pytest_runtest_call(item), partial(clock.work, call))


@pytest.mark.parametrize("times", [{"call": 10.1}, {"call": 6, "alone": 6}, {"call": 10.1, "shared": 3}])
def test_a_test_that_works_too_long_fails_unless_it_is_marked(times):
    with pytest.raises(pytest.fail.Exception, match=r"1\d.\d s of CPU time; .* `slow` may take 10, here 1.00 times as much"):
        spend(**times)
    spend(**times, marks=["slow"])


@pytest.mark.parametrize("times", [{"call": 9.9}, {"call": 5, "alone": 4}, {"call": 1, "shared": 30}])
def test_what_several_tests_share_is_not_counted(times):
    spend(**times)


def test_a_crowded_machine_allows_twice_as_much_and_no_more():
    spend(call=19.9, load=100)
    with pytest.raises(pytest.fail.Exception, match=r"may take 10, here 2.00 times as much"):
        spend(call=20.1, load=100, slowness=1.5)


def test_a_slow_machine_allows_more_and_a_fast_one_no_less():
    spend(call=14.9, slowness=1.5)
    with pytest.raises(pytest.fail.Exception, match=r"15.1 s of CPU time.*may take 10, here 1.50 times as much"):
        spend(call=15.1, slowness=1.5)
    spend(call=9.9, slowness=0.5)


def test_the_small_piece_of_work_is_measured_once():
    cpu_time.slowness.cache_clear()
    before = time.thread_time()
    found = cpu_time.slowness()
    spent = time.thread_time() - before
    assert 0.2 < found < 20 and spent < 5 * 20 * cpu_time.REFERENCE_SECONDS
    assert cpu_time.slowness() == found and time.thread_time() - before < 1.5 * spent


WORKS = """
import pytest
from tests import cpu_time

def work(seconds):
    cpu_time.cpu_seconds.work(seconds)

@pytest.fixture(scope="module")
def shared():
    work(30)

def test_shared(shared): pass
def test_call(): work(11)
@pytest.mark.slow
def test_marked(): work(11)
"""


def test_pytest_calls_the_plugin(pytester):
    pytester.makeini("[pytest]\ncpu_seconds = 10\nmarkers = slow")
    pytester.makepyfile(WORKS)
    with machine():
        result = pytester.runpytest_inprocess("-p", "tests.cpu_time", "-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*_ test_call _*", "11.0 s of CPU time; *"])


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
