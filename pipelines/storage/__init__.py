"""Finds recipes and lakes by name, path and environment variable, remembers the recipes last run on a lake, and turns disk
errors of every layer into one sentence. Imports no Dagster."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.storage.locations import (
        RECIPES,
        find_recipe,
        keep_submitted,
        lake_location,
        last_run,
        location_name,
        remember,
        remembered_recipes,
    )
    from pipelines.storage.storage_errors import StorageError, require_writable, storage_sentence

__getattr__, __dir__, __all__ = door(__name__, __file__)
