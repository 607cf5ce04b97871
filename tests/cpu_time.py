"""A plugin of pytest: a test without the mark `slow` fails where it takes more CPU time than `cpu_seconds` in pyproject.toml.

CPU time, of this process and of the children that it waited for, depends little on what else the machine does: where more
processes want to run than there are cores, caches are shared, and up to twice the bound is allowed. It does depend on the
machine: where a fixed piece of work takes longer than it took where the bound was chosen, the bound grows by as much, up to
twice. A test's own time is that of its call and of the fixtures made for it alone; those of wider scope belong to nobody.
"""

import functools
import json
import os
import resource
import time

import pytest

REFERENCE = 0.057
"""CPU seconds of `fixed_work` where the bound was chosen: the least of many measurements."""

_own: pytest.StashKey[float] = pytest.StashKey()
_shared: pytest.StashKey[float] = pytest.StashKey()


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children so far."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def crowding() -> float:
    """How many processes want each core, between 1 and 2."""
    return min(2.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def fixed_work() -> None:
    """What tests do most: Python's own objects, numbers and texts."""
    rows = [{"id": f"row-{number}", "tokens": number % 997, "text": "word " * (number % 20)} for number in range(20_000)]
    for _ in range(2):
        rows = json.loads(json.dumps(rows))
    sum(row["tokens"] * len(row["text"].split()) for row in rows)


@functools.cache
def slowness() -> float:
    """How many times longer this machine takes than the one of the bound, between 1 and 2. Measured once in a process, when
    a test is over the bound; the least of five measurements, so that a hiccup does not count."""
    measured = []
    for _ in range(5):
        before = time.process_time()
        fixed_work()
        measured.append(time.process_time() - before)
    return min(2.0, max(1.0, min(measured) / REFERENCE))


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
    if spent > most and item.get_closest_marker("slow") is None:
        crowded, slow = crowding(), slowness()
        if spent > most * crowded * slow:
            pytest.fail(f"{spent:.1f} s of CPU time; a test without the mark `slow` may take {most:g}"
                        f" (times {crowded:.1f} for the load, times {slow:.1f} for the machine's speed)", pytrace=False)
    return result
