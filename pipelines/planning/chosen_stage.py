"""The stage that `millrace plan` and `millrace sweep` work on: the one asked for, or the first that the recipe trains.

chosen_stage(recipe, None)          # "sft", or "student" in a recipe whose sft is switched off
"""

from __future__ import annotations

from pipelines.contract import Recipe
from resources.stages import planned_sections


def chosen_stage(recipe: Recipe, asked: str | None) -> str:
    """The section of the stage. Raises ValueError if there is no such section, or the recipe switches it off."""
    trained = [name for name in planned_sections() if name in recipe.trained]
    usual = [name for name, stage in planned_sections().items() if name in trained or not stage.opt_in]
    if asked is None:
        if not trained:
            raise ValueError(f"this recipe switches off {' and '.join(usual)}; enable one of them to plan or compare it")
        return trained[0]
    if asked not in planned_sections():
        raise ValueError(f"--stage {asked}: choose {' or '.join(usual)}")
    if asked not in usual:
        raise ValueError(f"--stage {asked}: this recipe has no {asked}; choose {' or '.join(usual)}")
    if asked not in trained:
        raise ValueError(f"--stage {asked}: this recipe switches it off ({planned_sections()[asked].switch}.enabled)")
    return asked
