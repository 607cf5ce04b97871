"""`millrace models` prints the record, and says so where other versions are installed."""

import json

import pytest
from typer.testing import CliRunner

import pipelines.asking.model_table as table
from model_ops.families.table import FAMILIES
from pipelines.cli import app

RUNNER = CliRunner()


def test_every_family_is_a_row():
    rows = json.loads(RUNNER.invoke(app, ["models", "--format", "json"]).output)
    assert [row["model_type"] for row in rows] == list(FAMILIES)
    assert all(row["full SFT"] == "yes" for row in rows)


def test_one_family_and_the_versions_that_were_tried(monkeypatch):
    monkeypatch.setattr(table, "installed", lambda: {**table.recorded().versions, "transformers": "99.1"})
    said = RUNNER.invoke(app, ["models", "--family", "lfm2"]).output
    assert "LFM2" in said and "Llama" not in said
    assert "installed here: transformers 99.1" in said and "--again" in said


def test_an_unknown_family_is_named():
    found = RUNNER.invoke(app, ["models", "--family", "lama"])
    assert found.exit_code == 2 and "lama is not in the table of families" in found.output


@pytest.mark.parametrize("name", ["gpt_oss"])
def test_what_is_left_out_is_said(name):
    assert "experts in bfloat16" in RUNNER.invoke(app, ["models", "--family", name]).output
