"""The bound on a test's CPU time, and what is made once for all processes of a run."""

import multiprocessing
import os

import pytest

from tests import cpu_time
from tests.cpu_time import cpu_seconds, crowding, slowness
from tests.long_files import LONG_FILES, TESTS
from tests.once import made_once

WORKS = """
import time, pytest

def work(seconds):
    before = time.process_time()
    while time.process_time() - before < seconds:
        pass

@pytest.fixture(scope="module")
def shared():
    work(0.4)

@pytest.fixture
def alone():
    work(0.15)

def test_shared(shared): pass
def test_brief(): work(0.1)
def test_sleeping(): time.sleep(0.5)
def test_call(): work(0.4)
def test_call_and_setup(alone): work(0.15)
@pytest.mark.slow
def test_marked(): work(0.4)
"""


@pytest.fixture
def outcome(pytester, monkeypatch):
    """The result of WORKS under a bound of 0.25 s, on a machine of a given load and slowness."""
    pytester.makeini("[pytest]\ncpu_seconds = 0.25\nmarkers = slow")
    pytester.makepyfile(WORKS)

    def run(load, slow=1.0):
        monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
        monkeypatch.setattr(cpu_time, "slowness", lambda: slow)
        return pytester.runpytest_inprocess("-p", "tests.cpu_time", "-p", "no:xdist", "-p", "no:cacheprovider")

    return run


def test_a_test_that_works_too_long_fails_unless_it_is_marked(outcome):
    result = outcome(load=0.1)
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines([
        "*_ test_call _*", "0.* s of CPU time; a test without the mark `slow` may take 0.25 (times 1.0 for the load*",
        "*_ test_call_and_setup _*"])


def test_a_crowded_machine_allows_twice_as_much_and_no_more(outcome):
    result = outcome(load=100)
    result.assert_outcomes(passed=6)
    assert crowding() == 2


def test_a_slow_machine_allows_as_much_more_as_it_is_slower(outcome):
    result = outcome(load=0.1, slow=1.3)  # 0.325 s: between test_call_and_setup's 0.3 and test_call's 0.4
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*times 1.3 for the machine's speed)"])


@pytest.mark.parametrize(("reference", "expected"), [(1e3, 1.0), (1e-6, 2.0)])
def test_the_machines_speed_is_measured_and_counts_up_to_twice(monkeypatch, reference, expected):
    monkeypatch.setattr(cpu_time, "REFERENCE", reference)
    assert slowness.__wrapped__() == expected


def test_a_machine_of_half_more_time_is_half_slower(monkeypatch):
    monkeypatch.setattr(cpu_time, "REFERENCE", 0.1)
    monkeypatch.setattr(cpu_time, "fixed_work", lambda: None)
    clock = iter([0.0, 0.15, 1.0, 1.4, 2.0, 2.2, 3.0, 3.3, 4.0, 4.9])  # the least is 0.15 s
    monkeypatch.setattr(cpu_time.time, "process_time", lambda: next(clock))
    assert slowness.__wrapped__() == pytest.approx(1.5)


def test_children_count():
    before = cpu_seconds()
    child = multiprocessing.get_context("fork").Process(target=lambda: sum(range(3_000_000)))
    child.start()
    child.join()
    assert cpu_seconds() - before > 0.01


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
