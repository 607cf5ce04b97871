"""The plugin that keeps the tests of a file in one process."""

import subprocess
import sys

import pytest

from tests.command import PROJECT
from tests.one_process import groups

SHARES = """
import pytest

pytestmark = pytest.mark.xdist_group("shares")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with open(MADE, "a") as made:
        made.write("x")


@pytest.mark.parametrize("number", range(4))
def test_shares(made, number): ...
"""


def test_every_group_of_the_project_is_found():
    found = groups()
    assert found["tests/model_ops/parallel/test_other_mesh.py"] == "other mesh" and len(found) > 8


@pytest.mark.slow
def test_what_tests_of_a_group_share_is_made_once(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "one_process.py").write_text((PROJECT / "tests" / "one_process.py").read_text())
    (tmp_path / "tests" / "test_shares.py").write_text(SHARES.replace("MADE", repr(str(tmp_path / "made"))))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.one_process", "-n", "2", "--dist", "loadgroup", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "4 passed" in done.stdout and (tmp_path / "made").read_text() == "x"
