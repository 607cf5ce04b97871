"""`millrace init`: looks at logs and writes a commented recipe, which is loaded before it gets its final name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from model_ops.files import write_text
from model_ops.jobs import Misuse
from pipelines.contract import TINY, load_recipe, look_at_base
from pipelines.init.recipe_text import Contents, recipe_text
from resources.inspecting import InspectError, Inspection, SourceProposal, inspect, survey
from resources.records import FieldMapping
from resources.sources import SourceError, SourceSettings

NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$")
MOST_OBJECTS = 1_000
MOST_BYTES = 500_000_000
"""Most bytes of logs that are read, unless the number of objects is given."""
SAMPLE_ROWS = 5_000


class InitError(Misuse):
    """No recipe can be written from this input; the message says what to give instead."""


@dataclass
class RecipeWishes:
    """The user's answers. None: not given."""

    uris: list[str]
    output: Path | None = None
    base_model: str = TINY
    workload: str | None = None
    force: bool = False
    limit_objects: int | None = None
    sample: int = SAMPLE_ROWS


@dataclass
class NewRecipe:
    """The recipe that was written. trainable: number of the inspected rows that curation would keep."""

    path: Path
    contents: Contents
    left_out: list[SourceProposal] = field(default_factory=list)

    @property
    def trainable(self) -> int:
        return self.contents.trainable


def write_recipe(wanted: RecipeWishes, tell: Callable[[str], None] = lambda doing: None) -> NewRecipe:
    """Writes the recipe. Raises InitError, SourceError, InspectError or BaseModelError if none can be written."""
    for uri in wanted.uris:
        check_uri(uri)
    if wanted.workload is not None:
        check_name(wanted.workload)
    if wanted.output is not None:
        check_output(wanted.output, wanted.force)
    tell("listing")
    proposals = sources_under(wanted.uris)
    workload = wanted.workload or suggested_name(proposals, wanted.uris)
    path = (wanted.output or Path(f"{workload}.yaml")).expanduser().absolute()
    check_output(path, wanted.force)
    base = look_at_base(wanted.base_model)
    limit = wanted.limit_objects or _limit(proposals)
    seen = _inspected(proposals, wanted, limit, tell)
    contents = Contents(workload, base, proposals, seen, path.parent, date.today(), limit)
    _write_checked(path, recipe_text(contents))
    return NewRecipe(path, contents, [each for each in proposals if each.kind == "unknown"])


def sources_under(uris: list[str]) -> list[SourceProposal]:
    """The sources under some uris. Raises InitError for a uri without objects."""
    try:
        return survey(uris)
    except SourceError as error:
        raise InitError(str(error).removeprefix("source logs: ")) from error  # an internal name


def check_uri(uri: str) -> None:
    """Raises InitError for an empty uri or one with credentials."""
    if not uri.strip():
        raise InitError("the logs' place is empty; give a file, a directory, a glob or an s3:// prefix")
    try:
        SourceSettings(uri=uri)
    except ValidationError as error:
        raise InitError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def check_name(name: str) -> None:
    if not NAME.match(name) or len(name) > 63:
        raise InitError(
            f"workload {name!r}: a name has small letters, digits, - and _, begins and ends with a letter or "
            "digit, and has at most 63 of them"
        )


def check_output(path: Path, force: bool) -> None:
    if path.is_dir():
        raise InitError(f"--output {path} is a directory; give the recipe's file, such as {path / 'recipe.yaml'}")
    if path.exists() and not force:
        raise InitError(f"{path} exists; give another --output, or --force to replace it")


def suggested_name(proposals: list[SourceProposal], uris: list[str]) -> str:
    """A workload's name, from the path of its logs."""
    single = [each.name for each in proposals if each.kind == "logs"]
    name = single[0] if len(single) == 1 else Path(uris[0].removeprefix("file://").rstrip("/*")).name
    name = re.sub(r"[^a-z0-9_-]+", "-", name.lower().partition(".")[0]).strip("-_")[:63].strip("-_")
    return name if name and NAME.match(name) and name not in ("logs", "data", "tmp") else "my-workload"


def _limit(proposals: list[SourceProposal]) -> int:
    """Number of objects that have about MOST_BYTES in total."""
    looks = [each.look for each in proposals if each.kind in ("logs", "feedback")]
    objects, size = sum(look.objects for look in looks), sum(look.bytes for look in looks)
    return max(1, min(MOST_OBJECTS, MOST_BYTES * objects // size if size else MOST_OBJECTS))


def _inspected(proposals: list[SourceProposal], wanted: RecipeWishes, limit: int, tell: Callable[[str], None]) -> Inspection:
    """Inspects the sources. Raises InitError if none has requests with answers."""
    logs = [each for each in proposals if each.kind == "logs"]
    where = ", ".join(wanted.uris)
    if not logs and any(each.kind == "feedback" for each in proposals):
        raise InitError(f"under {where} there is only feedback; name the logs that it belongs to as well")
    if not logs:
        detail = next((f"; {uri}: {problem}" for each in proposals for uri, problem in each.look.problems), "")
        raise InitError(f"no log of a known format lies under {where}{detail}. docs/data.md lists the formats")
    uris = [each.uri for each in proposals if each.kind in ("logs", "feedback")]
    try:
        inspection = inspect(
            uris,
            "auto",
            wanted.sample,
            limit,
            lambda doing: tell("reading the logs" if doing.startswith("reading") else doing),
            {each.uri: FieldMapping(**each.look.proposed) for each in proposals if each.look.proposed},
        )
    except (SourceError, InspectError) as error:
        raise InitError(str(error)) from error
    if not inspection.totals["rows"]:
        raise InitError(f"no request with an answer was read under {where}; name the logs, not the feedback alone")
    return inspection


def _write_checked(path: Path, text: str) -> None:
    """Writes the recipe under a temporary name and loads it first, so that the final file always loads."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(text, encoding="utf-8")
            load_recipe(beside)
        finally:
            beside.unlink(missing_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InitError(f"{path} cannot be written: {error.strerror or error}; give another --output") from error
