"""The public module of millrace: read a lake from Python, and submit recipes to it.

    import millrace

    lake = millrace.open("lake")
    lake.sql("select rule, count(*) as interactions from decisions group by rule")     # a polars.DataFrame
    lake.table("interactions").filter(pl.col("model") == "gpt-5").collect()             # tables as lazy frames
    run = millrace.submit("shop.yaml", lake="lake")                                     # what `millrace run` does
    run.wait().state

What this module exports is public. Everything in pipelines/, assets/, resources/, sql/ and model_ops/ is internal and may
change with any version. Errors that you can fix are `millrace.Error`, with the sentence that the command line prints.
Importing this module takes milliseconds: torch, Dagster, DuckDB and Polars are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.errors import Error, RecipeError
    from millrace.lake import Lake, open_lake
    from millrace.lake import open as open  # exported, but not in __all__
    from millrace.recipes import Outcome, Recipe, Run, load_recipe, submit
    from millrace.side_by_side import SideBySide

_EXPORTED = {
    "Error": "errors", "RecipeError": "errors",
    "SideBySide": "side_by_side",
    "Lake": "lake", "open": "lake", "open_lake": "lake",
    "Outcome": "recipes", "Recipe": "recipes", "Run": "recipes", "load_recipe": "recipes", "submit": "recipes",
}
"""Public name -> the module that defines it."""

__all__ = ["Error", "Lake", "Outcome", "Recipe", "RecipeError", "Run", "SideBySide", "load_recipe", "open_lake", "submit"]
"""Without `open`, so that `import *` keeps Python's own."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTED:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(f"millrace.{_EXPORTED[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
