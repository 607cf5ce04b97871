"""The public module of millrace: read a lake from Python, and submit recipes to it.

    import millrace

    lake = millrace.open("lake")
    lake.sql("select rule, count(*) as interactions from decisions group by rule")     # a polars.DataFrame
    lake.table("interactions").filter(pl.col("model") == "gpt-5").collect()             # tables as lazy frames
    run = millrace.submit("shop.yaml", lake="lake")                                     # what `millrace run` does
    run.wait().state

What this module exports is public. Everything in pipelines/, assets/, resources/, sql/ and model_ops/ is internal and may
change with any version. Errors that you can fix are `millrace.Error`, with the sentence that the command line prints.
Importing this module takes milliseconds: torch, Dagster, DuckDB and Polars are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from millrace.errors import Error, RecipeError
    from millrace.lake import Lake, SideBySide, open_lake
    from millrace.lake import open as open
    from millrace.recipes import Outcome, Recipe, Run, load_recipe, submit

__getattr__, __dir__, __all__ = door(__name__, __file__)
__all__.remove("open")  # `from millrace import *` keeps Python's own
