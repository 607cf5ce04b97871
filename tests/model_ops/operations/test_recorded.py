"""The table of families says what running the operations says."""

from pathlib import Path

import pytest

import model_ops.operations.trials.every_operation as trials
from model_ops.families.table import FAMILIES
from model_ops.models.tiny_families import OWN
from model_ops.operations.trials.every_operation import TRIALS, try_operations, write_material
from model_ops.operations.trials.recorded import as_markdown, read_trial_record, reasons
from model_ops.verify import verify
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("recorded trials")]

DOCS = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return write_material(tmp_path_factory.mktemp("material"))


def test_the_record_holds_every_family_and_operation():
    assert list(read_trial_record().families) == list(FAMILIES) == list(OWN)
    assert all(tuple(found) == TRIALS for found in read_trial_record().families.values())


def test_the_documentation_shows_the_record():
    assert as_markdown(read_trial_record().families) in DOCS.read_text(), "paste the output of: millrace models --markdown"


@pytest.mark.parametrize("name", thorough_except(["qwen3"], FAMILIES))
def test_the_record_says_what_running_the_operations_says(name, tmp_path, material):
    assert try_operations(name, tmp_path / name, material, verify) == read_trial_record().families[name]


def test_an_operation_that_fails_is_named_and_the_others_still_run(tmp_path, material, monkeypatch):
    def broken(job, progress):
        raise RuntimeError("no kernel for this\nsecond line")

    monkeypatch.setattr(trials.quantize, "run", broken)
    monkeypatch.setattr(trials.speculator, "run", lambda job, progress: {"loss": float("nan")})
    found = try_operations("qwen3", tmp_path / "qwen3", material, verify)
    assert found["int8"] == "RuntimeError: no kernel for this" and found["EAGLE-3"] == "loss is not finite"
    assert found["release"] == "int8 failed" and found["generation"] is None and found["evaluation"] is None
    assert "Qwen3, int8: RuntimeError: no kernel for this" in reasons({"qwen3": found})
    assert "| Qwen3 | yes | yes | yes | no |" in as_markdown({"qwen3": found})
