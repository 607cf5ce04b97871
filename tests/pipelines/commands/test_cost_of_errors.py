"""An error costs no more than a success: its exit code is the error's own, so no library is imported to find it."""

import subprocess
import sys

from model_ops.jobs.job import CheckFailed, Misuse
from tests.command import PROJECT

CALLS = """
import sys
from pipelines.cli import _carry_out
for line in sys.stdin:
    sys.argv = ["millrace", *line.strip().split(" | ")]
    print(sys.argv[1], _carry_out(), sorted({"dagster", "torch", "transformers", "numba"} & set(sys.modules)))
"""
COMMANDS = (
    ("sql", "select nope"), ("sql", "drop table x"), ("why", "nothing-there"), ("approve", "zzzzzz"), ("rollback", "no-such"),
    ("lineage", "no/such"), ("diff", "no/sft_dataset"), ("decisions", "no-such"),
)  # fmt: skip


def test_errors_import_nothing_heavy(tmp_path):
    from resources.lake.lake import LakeLayout

    lakes = {False: LakeLayout.open(tmp_path / "lake").root, True: tmp_path / "none"}
    asked = [(*words, "--lake", str(lakes[words[0] == "show"])) for words in (*COMMANDS, ("show", "recipes/demo.yaml"))]
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        input="\n".join(map(" | ".join, asked)),
        cwd=PROJECT,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [f"{words[0]} 2 []" for words in asked], done.stderr
    assert done.stderr.count("millrace: ") == len(asked), done.stderr


def test_each_error_knows_its_exit_code():
    from pipelines.contract.text import RecipeProblemsError
    from resources.releases.release import UnknownReleaseError
    from stores.s3 import GoneError

    assert (Misuse.exit_code, CheckFailed.exit_code) == (2, 1)
    assert [RecipeProblemsError.exit_code, UnknownReleaseError.exit_code, GoneError.exit_code] == [2, 2, 1]
