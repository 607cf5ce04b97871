"""A plugin of pytest: a process that failed says in the first line why, and the name of a test fits a line, its arguments
included."""

import subprocess

import pytest

from tests.reports import process_report

LONGEST = 128
"""Characters of a test's name with its ids: the longest line of code."""
SHORT = 24
"""Characters of a text that is an argument of a test, in the test's name."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except subprocess.CalledProcessError as error:  # says the exit code alone
        raise AssertionError(process_report(error)).with_traceback(error.__traceback__) from None


def pytest_make_parametrize_id(val):
    """A long text is named by its beginning; pytest numbers those that begin alike."""
    if not isinstance(val, str | bytes):
        return None
    text = (val if isinstance(val, str) else val.decode("latin-1")).encode("unicode_escape").decode()
    return f"{text[:SHORT]}..." if len(text) > SHORT + 3 else None


def pytest_collection_modifyitems(items):
    long = [item.nodeid for item in items if len(item.name) > LONGEST]
    if long:
        said = f"names of tests of more than {LONGEST} characters; give their cases `ids`: {', '.join(long[:20])}"
        raise pytest.UsageError(said)
