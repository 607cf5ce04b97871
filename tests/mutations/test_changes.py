"""Tests of the tests: each change of a formula, rule or gate in changes.diff makes one of the tests named with it fail.

    pytest -m thorough tests/mutations             # part of `make test-thorough`: minutes on 2 cores
    pytest -m thorough tests/mutations -k tau      # some of them

A copy of the project is changed in one place, and fast tests run there. A change that they pass survives, and fails the test
here: write the test that notices it. Every file of tests has to pass on the copy without a change, so that nothing is noticed
by accident."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resources.digests.code import PACKAGES
from tests.command import PROJECT
from tests.mutations.changes import CHANGES, Change

NEEDED = (
    *PACKAGES,
    "benchmarks",
    "tests",
    "docs",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)


def thorough(test):
    """One process runs all changes, one after the other."""
    for mark in (pytest.mark.thorough, pytest.mark.timeout(900), pytest.mark.xdist_group("mutations")):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs fast tests on a copy of the project with a change, or with none: runs(tests, change) gives exit code and output."""
    root = tmp_path_factory.mktemp("changed") / "project"
    root.mkdir()
    for name in NEEDED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(PROJECT / name, root / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(root / "kernels"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", str(Path(__file__).with_name("run_changes.py")), str(root)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:

        def run(tests: tuple[str, ...], change: Change | None = None) -> dict:
            asked = {"file": "", "before": "", "after": ""} if change is None else vars(change)
            print(json.dumps({"name": "", **asked, "tests": tests}), file=running.stdin, flush=True)
            return json.loads(running.stdout.readline())

        yield run
        running.stdin.close()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_one_of_the_code_as_it_is(change: Change):
    assert (PROJECT / change.file).read_text(encoding="utf-8").count(change.before) == 1, (
        f"{change.file} does not hold this text once any more, change tests/mutations/changes.diff: {change.before}"
    )
    assert change.before != change.after
    assert change.tests and all((PROJECT / "tests" / name).is_file() for name in change.tests)


@thorough
@pytest.mark.parametrize("tests", sorted({change.tests for change in CHANGES.values()}), ids=" ".join)
def test_without_a_change_the_tests_pass(runs, tests):
    found = runs(tests)
    assert found["code"] == pytest.ExitCode.OK, found["said"]


@thorough
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(runs, name):
    found = runs(CHANGES[name].tests, CHANGES[name])
    assert found["code"] == pytest.ExitCode.TESTS_FAILED, f"SURVIVES: {name} ({CHANGES[name].file})\n{found['said']}"
