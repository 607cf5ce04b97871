"""Recipes and runs: load a recipe from a file, a text or values, and submit it to a lake.

    recipe = millrace.load_recipe({"workload": "shop", "base_model": "tiny", "sources": {"gateway": {"uri": "logs/"}}})
    run = millrace.submit(recipe, lake="lake", select=["+curated_interactions"])
    run.wait().state                # succeeded, failed, refused, stopped or killed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from millrace.errors import public
from pipelines.contract.recipe import Recipe, read_recipe
from pipelines.contract.recipe import load_recipe as load_file
from pipelines.running.outcome import Outcome
from pipelines.running.submit import Run
from pipelines.running.submit import submit as start

__all__ = ["Outcome", "Recipe", "Run", "load_recipe", "submit"]


@public
def load_recipe(recipe: str | Path | Mapping[str, Any], base: str | Path | None = None) -> Recipe:
    """A recipe that has been checked, with every default filled in and every path absolute.

    recipe: the path of a YAML file; or a recipe's text (a string of several lines); or its values. base: the folder that
    relative paths of a text or of values start from; left out, the current one. A file's paths are relative to its own folder.
    Raises RecipeError with every problem found.

    >>> millrace.load_recipe("shop.yaml").base_model
    'tiny'
    """
    if isinstance(recipe, Path) or (isinstance(recipe, str) and "\n" not in recipe):
        return load_file(Path(recipe))
    return read_recipe(recipe, Path(base) if base is not None else Path.cwd())


@public
def submit(
    recipe: Recipe | str | Path,
    lake: str | Path | None = None,
    select: Sequence[str] | None = None,
    partition: date | None = None,
) -> Run:
    """Starts a run in a process of its own and returns at once. The run goes on when this process ends.

    recipe: what `load_recipe` returned, or the path of a file. lake: its directory, made if it is not there; left out,
    MILLRACE_LAKE or, of a recipe's file, ./lake beside it. select: part of the graph in Dagster's selection syntax, such as
    ["sft_model"] or ["+curated_interactions"]. partition: one day (UTC) of logs; left out, all days found. What is finished
    already is not repeated. Raises Error for what cannot be started.

    >>> run = millrace.submit("shop.yaml", lake="lake")
    >>> run.wait().state
    'succeeded'
    """
    return start(recipe, lake, select, partition)
