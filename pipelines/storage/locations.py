"""Finds recipes and lakes by name, path and environment variables. Imports no Dagster."""

import os
from pathlib import Path

from stores.lake_error import LakeError
from stores.mirror.location import is_bucket, mirror_root

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def find_recipe(name: str) -> Path | None:
    """The recipe file of a code location's name; dashes and underscores are the same.

    MILLRACE_RECIPES (folders or files, separated like PATH) is searched before the project's recipes/.
    """
    places = [Path(place) for place in os.environ.get("MILLRACE_RECIPES", "").split(os.pathsep) if place]
    for place in [*places, RECIPES]:
        for path in sorted(place.glob("*.y*ml")) if place.is_dir() else [place]:
            if path.is_file() and location_name(path) == name.replace("-", "_"):
                return path
    return None


def location_name(recipe_path: Path) -> str:
    """The code location that shows a recipe in the UI."""
    return recipe_path.stem.replace("-", "_")


def lake_location(recipe_path: Path, given: str | Path | None = None) -> Path:
    """--lake, else MILLRACE_LAKE, else ./lake next to the recipe. Of a lake in a bucket, the folder of its mirror."""
    chosen = given or os.environ.get("MILLRACE_LAKE") or recipe_path.resolve().parent / "lake"
    if is_bucket(chosen):
        return mirror_root(str(chosen))
    if "://" in str(chosen):
        raise LakeError(f"lake {chosen}: a lake is a local directory or s3://BUCKET/PREFIX")
    return Path(chosen).expanduser().resolve()
