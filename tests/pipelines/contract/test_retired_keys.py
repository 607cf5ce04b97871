"""A key that another one replaced is accepted if both say the same, and kept in the recipe's own text."""

import json
from types import SimpleNamespace

from pipelines.contract.recipe import read_recipe
from pipelines.contract.retired_keys import RETIRED_KEYS, contradicted, without_retired_keys

RECIPE = {"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "logs/*.jsonl"}},
          "evaluation": {"num_speculative_tokens": 3, "prompts": 5}}


def test_it_is_taken_out_and_the_given_values_stay_as_they_are():
    content, given = without_retired_keys(RECIPE)
    assert content["evaluation"] == {"prompts": 5} and RECIPE["evaluation"]["num_speculative_tokens"] == 3
    assert given == [(RETIRED_KEYS[0], 3)]
    assert without_retired_keys({"evaluation": None}) == ({"evaluation": None}, [])
    assert without_retired_keys(["no", "mapping"]) == (["no", "mapping"], [])


def test_only_the_same_value_is_accepted():
    recipe = SimpleNamespace(speculator=SimpleNamespace(num_speculative_tokens=1))
    said = [value for value in (1, 2, "1", True) if list(contradicted([(RETIRED_KEYS[0], value)], recipe))]
    assert said == [2, "1", True]


def test_a_recipe_with_it_reads_and_says_so(tmp_path):
    recipe = read_recipe(RECIPE, base=tmp_path)
    assert recipe.evaluate_settings.num_speculative_tokens == 3 and recipe.evaluate_settings.prompts == 5
    assert recipe.unneeded == [("evaluation.num_speculative_tokens", "it is always speculator.num_speculative_tokens")]
    assert json.loads(recipe.as_text())["evaluation"]["num_speculative_tokens"] == 3
