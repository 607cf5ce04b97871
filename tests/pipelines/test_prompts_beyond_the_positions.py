"""An agent's real trajectories on a real model whose positions they exceed: the run ends before anything is trained."""

import re

import pytest

RECIPE = """
workload: airline
base_model: {shared}/models/house
sources: {{tau: {{uri: {shared}/data/tau_airline.json}}}}
threads: 1
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_the_run_ends_before_the_training_and_says_why_for_each_stage(shared, cli, tmp_path):
    recipe = tmp_path / "airline.yaml"
    recipe.write_text(RECIPE.format(shared=shared))
    checked = cli("check", recipe, "--lake", tmp_path / "lake", "--no-plan", check=None).stdout
    assert "rows are longer than the base model's 2,048 positions" in checked
    said = cli("run", recipe, "--lake", tmp_path / "lake", check=1).stderr
    for sentence in (
        r"sft: \d+ of \d+ train rows have more tokens than the model's 2,048 positions, and sft.max_length is 4,096",
        r"student: \d+ of \d+ train rows",
        "set sft.max_length to at most 2,048",
        r"evaluation: acceptance cannot be measured: none of \d test prompts has at most 1,920 tokens",
    ):
        assert re.search(sentence, said)
    assert said.count("did not pass") == 1
    assert not (tmp_path / "lake" / "models" / "airline" / "sft_model").exists()
