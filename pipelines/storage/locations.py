"""Finds recipes and lakes by name, path and environment variables. Imports no Dagster. The recipes last run on a lake are in
`<lake>/recipes/<workload>.json`, one file per workload: what `millrace ui --lake LAKE` shows if no recipe is named."""

import json
import os
from pathlib import Path

from model_ops.files import write_json, write_text
from resources.lake import LakeLayout
from stores.lake_error import LakeError
from stores.mirror.location import is_bucket, mirror_root


def remember(lake: LakeLayout, workload: str, recipe: Path) -> None:
    """Records `recipe` as the one that makes this workload's artefacts in the lake."""
    place, content = lake.root / "recipes" / f"{workload}.json", {"recipe": str(recipe.resolve())}
    if not place.is_file() or place.read_text(encoding="utf-8") != json.dumps(content, indent=2, ensure_ascii=False) + "\n":
        write_json(place, content)


def keep_submitted(lake: LakeLayout, workload: str, digest: str, text: str) -> Path:
    """Keeps a recipe that was submitted without a file: `<lake>/recipes/submitted/<workload>-<digest>.json`."""
    place = lake.root / "recipes" / "submitted" / f"{workload}-{digest[:12]}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_file():
        write_text(place, text)
    return place


def remembered_recipes(lake: LakeLayout) -> list[Path]:
    """The recipe files recorded in a lake, sorted by workload. A file may have been moved since."""
    recorded = [_recorded(place) for place in sorted((lake.root / "recipes").glob("*.json"))]
    return [recipe for recipe in recorded if recipe is not None]


def last_run(lake: LakeLayout, workload: str) -> Path | None:
    """The recipe file that was last run for a workload; None if none is recorded. The file may have been moved since."""
    return _recorded(lake.root / "recipes" / f"{workload}.json")


def _recorded(place: Path) -> Path | None:
    try:
        return Path(json.loads(place.read_text(encoding="utf-8"))["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not readable: the user names the recipe


RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def find_recipe(name: str) -> Path | None:
    """The recipe file of a code location's name; dashes and underscores are the same. MILLRACE_RECIPES (folders or files,
    separated like PATH) is searched before the project's recipes/."""
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
