"""What deciding needs to know of a recipe, as plain values: resources/deciding/ knows no recipe. Imports no Dagster."""

from __future__ import annotations

from pathlib import Path

from pipelines.contract.recipe import Recipe
from resources.deciding.facts import RecipeFacts


def facts_of(recipe: Recipe) -> RecipeFacts:
    """What deciding needs to know of a recipe."""
    retrain = recipe.automation.retrain
    return RecipeFacts(
        recipe.workload, recipe.policy, recipe.base_model if Path(recipe.base_model).is_dir() else "",
        retrain.cron if retrain.enabled else "", recipe.speculator.architecture, list(recipe.datasets.named),
        recipe.evaluation.prompts, recipe.release.enabled,
        as_adapter=recipe.release.enabled and recipe.release.form == "adapter",
        base_repository="" if recipe.base_model == "tiny" or Path(recipe.base_model).is_dir() else recipe.base_model,
        base_branch=recipe.base_revision or "", decide=recipe.automation.decide)
