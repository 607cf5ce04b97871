"""A recipe that is no file: text or values, with the same checks and sentences, and a copy that any folder can hold."""

from datetime import date
from pathlib import Path

import pytest
import yaml

from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.contract.text import RecipeProblemsError

TEXT = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nsft: {steps: 3, learning_rate: 1e-3}\n"
VALUES = {
    "workload": "shop",
    "base_model": "tiny",
    "sources": {"gateway": {"uri": "logs"}},
    "first_day": date(2026, 6, 1),
    "sft": {"steps": 3, "learning_rate": 1e-3},
}


def test_a_file_its_text_and_its_values_are_the_same_recipe(tmp_path):
    (tmp_path / "shop.yaml").write_text(TEXT)
    of_file = load_recipe(tmp_path / "shop.yaml")
    assert of_file.sources["gateway"].uri == str(tmp_path / "logs")
    assert of_file == read_recipe(TEXT, tmp_path) == read_recipe(VALUES, tmp_path)
    assert read_recipe(TEXT, tmp_path / "elsewhere").digest != of_file.digest


def test_text_and_values_are_refused_in_the_sentences_of_a_file(tmp_path):
    wrong = TEXT.replace("steps: 3", "stps: 3, epochs: '2'")
    (tmp_path / "shop.yaml").write_text(wrong)
    said = []
    for read in (
        lambda: load_recipe(tmp_path / "shop.yaml"),
        lambda: read_recipe(wrong, tmp_path),
        lambda: read_recipe(yaml.safe_load(wrong.replace("1e-3", "1.0e-3")), tmp_path),
    ):
        with pytest.raises(RecipeProblemsError) as refused:
            read()
        said.append(refused.value)
    assert len({frozenset(map(str, error.problems)) for error in said}) == 1
    assert str(said[1]).startswith("the recipe line 5: sft.")
    assert str(said[2]).startswith("the recipe: sft.")


@pytest.mark.parametrize("values", [{"workload": object()}, {("a", "b"): 1}])
def test_values_that_no_recipe_holds_are_one_sentence(values):
    with pytest.raises(RecipeProblemsError, match="the recipe: holds a value that no recipe can hold"):
        read_recipe(values, Path.cwd())


def test_the_copy_of_a_recipe_holds_absolute_paths_and_is_the_same_recipe(tmp_path, monkeypatch):
    for folder in ("mimo", "small", "vectors"):
        (tmp_path / folder).mkdir()
    more = (
        "evals: {held: {uri: e.jsonl}}\nseeds: {s: {uri: s.jsonl}}\n"
        "curation: {semantic_duplicates: {enabled: true, model: vectors}}\n"
        "speculator: {architecture: draft_model, draft_model: small}\n"
    )
    recipe = read_recipe(TEXT.replace("tiny", "./mimo") + more, tmp_path)
    copy = recipe.as_text()
    monkeypatch.chdir("/")
    again = read_recipe(copy, Path("/nowhere"))
    assert again.model_dump() == recipe.model_dump() and again.digest == recipe.digest
    assert again.base_model == str(tmp_path / "mimo") and again.speculator.draft_model == str(tmp_path / "small")
    assert again.curation.semantic_duplicates.model == str(tmp_path / "vectors")
    assert "logs" in copy and str(tmp_path / "logs") in copy and "evaluation" not in copy  # defaults are not written down


def test_the_shipped_recipes_survive_being_copied():
    from pipelines.storage.locations import RECIPES

    for path in RECIPES.glob("*.yaml"):
        recipe = load_recipe(path)
        assert read_recipe(recipe.as_text(), Path("/nowhere")).digest == recipe.digest
