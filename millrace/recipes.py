"""Recipes and runs: load a recipe from a file, a text or values, and submit it to a lake."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from millrace.errors import Error, public
from pipelines.contract import Recipe, read_recipe
from pipelines.contract import load_recipe as load_file
from pipelines.running import Outcome, Run
from pipelines.running import submit as start

__all__ = ["Outcome", "Recipe", "Run", "load_recipe", "submit"]


@public
def load_recipe(recipe: str | Path | Mapping[str, Any], base: str | Path | None = None) -> Recipe:
    """Reads and checks a recipe; fills in defaults and makes paths absolute.

    recipe: the path of a YAML file; or a recipe's text (a string of several lines); or its values. base: the folder that
    relative paths of a text or of values start from; by default the current one. A file's paths are relative to its own
    folder. Raises RecipeError with every problem found.

    >>> millrace.load_recipe("shop.yaml").base_model
    'tiny'"""
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
    """Starts a run in a process of its own and returns at once. The run continues when this process ends.

    recipe: what `load_recipe` returned, or the path of a file. lake: its directory, created if needed; by default
    MILLRACE_LAKE or, for a recipe file, ./lake next to it. select: part of the graph in Dagster's selection syntax, such as
    ["sft_model"] or ["+curated_interactions"]. partition: one day (UTC) of logs; by default all days found. Finished steps are
    not repeated. Raises Error if the run cannot be started.

    >>> run = millrace.submit("shop.yaml", lake="lake")
    >>> run.wait().state
    'succeeded'"""
    if isinstance(select, str) or (select is not None and not (select and all(isinstance(part, str) for part in select))):
        raise Error('select is a list of parts of the graph, such as ["sft_model"]; leave it out for the whole graph')
    if partition is not None and not isinstance(partition, date):
        raise Error(f"partition is a datetime.date, such as date(2026, 6, 1), not {partition!r}")
    return start(recipe, lake, select, partition)
