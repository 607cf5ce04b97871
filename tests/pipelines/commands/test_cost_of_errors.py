"""An error costs no more than a success: its exit code is the error's own, so no library is imported to find it."""

import subprocess
import sys

import pytest

from model_ops.jobs.errors import CheckFailed, Misuse
from tests.command import PROJECT

CALL = """
import sys
from pipelines.cli import _carry_out
print(_carry_out(), sorted({"dagster", "torch", "transformers", "numba"} & set(sys.modules)))
"""


@pytest.mark.parametrize(("code", "words"), [
    (2, ("sql", "select nope")), (2, ("sql", "drop table x")), (2, ("why", "nothing-there")), (2, ("approve", "zzzzzz")),
    (2, ("rollback", "no-such")), (2, ("lineage", "no/such")), (2, ("diff", "no/sft_dataset")), (2, ("decisions", "no-such")),
], ids=lambda value: value[0] if isinstance(value, tuple) else "")  # fmt: skip
def test_error_imports_nothing_heavy(tmp_path, code, words):
    from resources.lake.lake import LakeLayout

    LakeLayout.open(tmp_path / "lake")
    assert_cheap(tmp_path / "lake", code, words)


def test_to_show_rows_of_no_lake_imports_nothing_heavy(tmp_path):
    assert_cheap(tmp_path / "lake", 2, ("show", "recipes/demo.yaml"))


def assert_cheap(lake, code, words):
    done = subprocess.run(
        [sys.executable, "-c", CALL, *words, "--lake", str(lake)], cwd=PROJECT, text=True, capture_output=True, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == [f"{code} []"], done.stderr
    assert done.stderr.startswith("millrace: "), done.stderr


def test_each_error_knows_its_exit_code():
    from pipelines.contract.text import RecipeProblemsError
    from resources.releases.release_names import UnknownReleaseError
    from stores.s3 import GoneError

    assert (Misuse.exit_code, CheckFailed.exit_code) == (2, 1)
    assert [RecipeProblemsError.exit_code, UnknownReleaseError.exit_code, GoneError.exit_code] == [2, 2, 1]
