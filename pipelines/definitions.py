"""Everything Dagster knows about a recipe: `pipelines.definitions.NAME` is the graph of recipes/NAME.yaml, and `millrace ui`
names a recipe's path as the attribute. MILLRACE_RECIPES (folders or files, separated like PATH) says where else to look,
MILLRACE_LAKE which lake. Importing this module imports no torch; a test checks this."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import dagster as dg

from pipelines.graph import definitions
from pipelines.storage import RECIPES, find_recipe

for _kind in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=_kind)  # for who writes the graph, not for who opens it


def __getattr__(name: str) -> dg.Definitions:
    if name.startswith("_"):
        raise AttributeError(name)
    path = Path(name) if os.sep in name else find_recipe(name)
    if path is None:
        raise AttributeError(f"pipelines.definitions.{name}: no {name}.yaml in {RECIPES} or in MILLRACE_RECIPES")
    return definitions(path)
