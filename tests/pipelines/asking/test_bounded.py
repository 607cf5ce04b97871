"""Work that is stopped by a clock or by Ctrl-C."""

import os
import signal
import threading
import time

import duckdb
import pytest

from pipelines.asking import bounded as module
from pipelines.asking.bounded import QuestionInterrupted, TookTooLong, at_most, bounded


def test_results_and_errors_come_through():
    assert bounded(lambda: 7, lambda: None, 0) == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, lambda: None, 5)


@pytest.mark.parametrize(
    "rows",
    [
        "select * from range(10_000_000) a, range(10_000_000) b",
        "select sum(a.range * b.range) from range(10_000_000) a, range(10_000_000) b",
    ],
)
def test_a_query_ends_when_its_time_is_over(rows):
    with duckdb.connect() as connection, pytest.raises(TookTooLong) as late:
        bounded(lambda: [None for _ in connection.sql(rows).to_arrow_reader()], connection.interrupt, 0.2)
    assert not late.value.stuck


@pytest.fixture
def hears_ctrl_c():
    """A shell starts commands in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_the_work_and_is_an_interruption(hears_ctrl_c):
    told = threading.Event()
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        bounded(lambda: told.wait(20), told.set, 0)
    assert isinstance(interrupted.value, QuestionInterrupted) and not interrupted.value.stuck


def test_work_that_does_not_stop_is_known_to_be_stuck(monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    with pytest.raises(TookTooLong) as late:
        bounded(lambda: time.sleep(2), lambda: None, 0.1)
    assert late.value.stuck


def test_an_allocation_beyond_the_bound_fails_and_the_bound_is_lifted():
    with at_most(0.2), pytest.raises(MemoryError):
        bytearray(2**30)
    assert len(bytearray(2**29)) == 2**29
