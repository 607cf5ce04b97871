"""What `millrace retrain` does: records a request, or says what would be decided about one."""

from datetime import UTC, datetime
from pathlib import Path

from pipelines.contract import Recipe, RecipeProblemsError, load_recipe
from pipelines.storage import last_run
from resources.deciding import Decision, Decisions, RequestError, Requests, RetrainingRequest, preview
from resources.lake import LakeLayout


def request_retraining(lake: LakeLayout, wanted: RetrainingRequest, given: Path | None = None) -> str:
    """Keeps a request, once. Returns the answer to the person, by the recipe `given` or the one last run. Raises S3Error if the
    bucket of a lake is away, and what `preview_retraining` raises for a wrong recipe."""
    recipe = _recipe(lake, wanted.workload, given)
    request, is_new = Requests(lake, wanted.workload).ask(wanted, datetime.now(UTC))
    return request.asked_sentence(is_new, recipe.facts.decide if recipe else None)


def preview_retraining(lake: LakeLayout, wanted: RetrainingRequest, given: Path | None) -> tuple[Decision, str]:
    """What would be decided now, by the recipe `given` or the one last run. Raises RequestError if there is none, RecipeError
    if it is wrong."""
    recipe = _recipe(lake, wanted.workload, given)
    if recipe is None:
        said = f"{lake.place} does not know the recipe of {wanted.workload}, or it was moved: name it with --recipe"
        raise RequestError(said)
    decision, hold = preview(wanted, lake, recipe.facts, Decisions(lake, wanted.workload).seen(), datetime.now(UTC))
    return decision, decision.preview_sentence(hold)


def _recipe(lake: LakeLayout, workload: str, given: Path | None) -> Recipe | None:
    """The recipe `given`, or the one that was last run, if that can still be read."""
    if given is not None:
        recipe = load_recipe(given)
        if recipe.workload != workload:
            raise RequestError(f"{given} is the recipe of {recipe.workload}, not of {workload}: name the right one")
        return recipe
    path = last_run(lake, workload)
    try:
        return load_recipe(path) if path is not None and path.is_file() else None
    except RecipeProblemsError:
        return None
