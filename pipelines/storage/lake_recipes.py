"""The recipes last run on a lake: `<lake>/recipes/<workload>.json`, one file per workload.

remember(lake, "math-tutor", Path("math-tutor.yaml"))
remembered(lake)            # what `millrace ui --lake LAKE` shows if no recipe is named
"""

import json
from pathlib import Path

from model_ops.files import write_json, write_text
from resources.lake import LakeLayout


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


def remembered(lake: LakeLayout) -> list[Path]:
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
