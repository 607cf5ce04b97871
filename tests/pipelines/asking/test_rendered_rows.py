"""`millrace show`: rows as they are rendered, and a sentence where there are none yet."""

import json

import pytest

from resources.lake.lake import LakeLayout


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
    assert (
        "has no base_model of helper yet: run `millrace run RECIPE --select +sft_dataset --select base_model` first"
        in done.stderr
    )
