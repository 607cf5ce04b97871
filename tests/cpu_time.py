"""A plugin of pytest: a test without a mark such as `slow` fails where it takes more CPU time than `cpu_seconds` in
pyproject.toml.

CPU time, of this process and of the children that it waited for, depends little on what else the machine does: where more
processes want to run than there are cores, caches are shared, and more than the bound is allowed. So it is on a machine that
is slower than the one on which the bound was set, as a small piece of work shows. Both together allow twice as much at most. A
test's own time is that of its call and of the fixtures made for it alone; those of wider scope belong to nobody.
"""

import functools
import os
import resource
import time

import numpy as np
import pytest

REFERENCE_SECONDS = 0.023
"""CPU time of `small_work` where the bound was set: one core of an AMD EPYC of 2024, Python 3.11."""

_own: pytest.StashKey[float] = pytest.StashKey()
_shared: pytest.StashKey[float] = pytest.StashKey()


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children so far."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def crowding() -> float:
    """How many processes want each core, between 1 and 2."""
    return min(2.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def small_work() -> None:
    """A little of what tests do: strings and dictionaries in Python, arrays in numpy."""
    counts: dict[str, int] = {}
    for number in range(60_000):
        word = str(number % 997)
        counts[word] = counts.get(word, 0) + number
    values = np.arange(400_000, dtype=np.float64)[::-1] % 1009.0
    for _ in range(3):
        np.sort(values).cumsum()


@functools.cache
def slowness() -> float:
    """How much more CPU time this machine takes than the reference, by the best of five measurements."""
    found = []
    for _ in range(5):
        before = time.thread_time()
        small_work()
        found.append(time.thread_time() - before)
    return min(found) / REFERENCE_SECONDS


def allowance() -> float:
    """How many times the bound a test may take here, between 1 and 2."""
    return min(2.0, crowding() * max(1.0, slowness()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("cpu_seconds", "CPU time that a test without the mark `slow` may take", default="10")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_shared] = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Notes the time of fixtures that several tests share."""
    before, inside = cpu_seconds(), request.config.stash[_shared]
    result = yield
    if fixturedef.scope != "function":
        request.config.stash[_shared] = inside + cpu_seconds() - before  # with what it asked for itself
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    before, shared = cpu_seconds(), item.config.stash[_shared]
    result = yield
    item.stash[_own] = cpu_seconds() - before - (item.config.stash[_shared] - shared)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before, shared = cpu_seconds(), item.config.stash[_shared]
    result = yield
    spent = item.stash[_own] + cpu_seconds() - before - (item.config.stash[_shared] - shared)
    most = float(item.config.getini("cpu_seconds"))
    limited = not any(item.get_closest_marker(mark) for mark in ("slow", "thorough", "gpu"))
    if spent > most and limited and spent > most * (times := allowance()):
        said = f"{spent:.1f} s of CPU time; a test without the mark `slow` may take {most:g}, here {times:.2f} times as much"
        pytest.fail(said, pytrace=False)
    return result
