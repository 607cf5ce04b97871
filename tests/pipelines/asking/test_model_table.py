"""`millrace models` prints the record, and says so where other versions are installed."""

import json

import pytest
from typer.testing import CliRunner

import pipelines.asking.model_table as table
from model_ops.families.table import FAMILIES
from pipelines.cli import app
from resources.lake.lake import LakeLayout

RUNNER = CliRunner()


def test_every_family_is_a_row():
    rows = json.loads(RUNNER.invoke(app, ["models", "--format", "json"]).output)
    assert [row["model_type"] for row in rows] == list(FAMILIES)
    assert all(row["full SFT"] == "yes" for row in rows)


def test_one_family_and_the_versions_that_were_tried(monkeypatch):
    monkeypatch.setattr(table, "installed_versions", lambda: {**table.read_trial_record().versions, "transformers": "99.1"})
    said = RUNNER.invoke(app, ["models", "--family", "lfm2"]).output
    assert "LFM2" in said and "Llama" not in said
    assert "installed here: transformers 99.1" in said and "--again" in said


def test_an_unknown_family_is_named():
    found = RUNNER.invoke(app, ["models", "--family", "lama"])
    assert found.exit_code == 2 and "lama is not in the table of families" in found.output


@pytest.mark.parametrize("name", ["gpt_oss"])
def test_what_is_left_out_is_said(name):
    assert "experts in bfloat16" in RUNNER.invoke(app, ["models", "--family", name]).output


@pytest.mark.slow
def test_rows_of_the_dataset_are_shown_with_what_is_learnt(toy, cli):
    done = cli("show", toy.recipe, "--lake", toy.lake)
    assert "<|im_start|>assistant" in done.stdout and "«" in done.stdout and "tokens learnt" in done.stdout


def test_a_lake_without_a_dataset_is_a_sentence(cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"workload": "helper", "base_model": "tiny", "sources": {"gateway": {"uri": "gateway"}}})
    )
    LakeLayout.open(tmp_path / "lake")
    done = cli("show", tmp_path / "recipe.yaml", "--lake", tmp_path / "lake", check=2)
    expected = "has no base_model of helper yet: run `millrace run RECIPE --select +sft_dataset --select base_model` first"
    assert expected in done.stderr
