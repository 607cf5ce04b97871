"""Finds the sources that a recipe should name for a uri: logs, feedback, seeds and evaluation suites. A folder whose parts
(sub-folders, and files grouped by name, but for days) have one kind and format is one source; else each part is one."""

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from resources.inspecting.overview import LISTED, FirstLook, look_at
from resources.sources import LogObject, SourceSettings, days_in, local_path, nothing_under, objects_after, remote_uri

MOST_PARTS = 12
PER_FOLDER = 200
"""Objects that are listed of one sub-folder."""
EVALS = re.compile(r"^(evals?|evaluations?|benchmarks?|held[-_]?out.*|.*[-_](test|eval|heldout))$", re.IGNORECASE)
SEEDS = re.compile(r"^(seeds?|few[-_]?shots?|handmade)$", re.IGNORECASE)
_LAST = chr(0x10FFFF)

Kind = Literal["logs", "feedback", "seeds", "evals", "unknown"]


@dataclass(frozen=True)
class SourceProposal:
    """A source as a recipe could name it."""

    name: str
    """Unique, valid as a recipe's key. A source whose records are of no known format is of a kind other than unknown if
    `look.proposed` has fields for them."""
    uri: str
    kind: Kind
    look: FirstLook


def survey(uris: list[str]) -> list[SourceProposal]:
    """Finds the sources under some uris. Raises SourceError for a uri that cannot be listed or has no objects."""
    proposals: list[SourceProposal] = []
    for uri in uris:
        proposals += _of_one(uri, SourceSettings(uri=uri))
    return _with_unique_names(proposals)


def _of_one(uri: str, source: SourceSettings) -> list[SourceProposal]:
    root = _root(uri)
    listed = list(_bounded(source, root))
    if not listed:
        raise nothing_under("logs", source)
    has_more = len(listed) >= LISTED
    whole = SourceProposal(name_of(uri), uri, "unknown", look_at(listed, source, has_more))
    whole = replace(whole, kind=_kind(whole))
    parts = _parts(root, listed) if root else {}
    while len(parts) == 1 and next(iter(parts)).endswith("/") and not _is_day(next(iter(parts))):  # one folder in another
        root += next(iter(parts))
        parts = _parts(root, listed)
    if not 1 < len(parts) <= MOST_PARTS or any(_is_day(part) for part in parts):
        return [whole]
    apart = [_part(root, part, objects, source) for part, objects in parts.items()]
    kinds = {(part.kind, tuple(sorted(part.look.formats)), _contents(part.look.proposed)) for part in apart}
    if len(kinds) == 1 and apart[0].kind in ("logs", "feedback"):
        return [whole]
    return apart


def _contents(fields: dict[str, str]) -> tuple:
    return tuple(fields.get(name) for name in ("request", "messages", "prompt", "response", "answer"))


def _root(uri: str) -> str:
    path = local_path(uri)
    if path is None:
        place = remote_uri(uri)
        return "" if glob.has_magic(place) else place.rstrip("/") + "/"
    return path.rstrip("/") + "/" if Path(path).is_dir() else ""


def _bounded(source: SourceSettings, root: str) -> Iterator[LogObject]:
    """Objects in order, at most PER_FOLDER of each folder right under the root, at most LISTED in total."""
    after, total = "", 0
    while True:
        folder, count = "", 0
        for item in objects_after("logs", source, after):
            here = _part_of(root, item.uri) if root else ""
            count = count + 1 if here == folder else 1
            folder = here
            if folder.endswith("/") and count > PER_FOLDER:
                after = root + folder + _LAST
                break
            yield item
            total += 1
            if total >= LISTED:
                return
        else:
            return


def _part_of(root: str, uri: str) -> str:
    head, slash, _ = uri.removeprefix(root).partition("/")
    return head + slash


def _parts(root: str, listed: list[LogObject]) -> dict[str, list[LogObject]]:
    """Sub-folders (ending in a slash) and files under the root; files whose names differ only in days are one pattern."""
    parts: dict[str, list[LogObject]] = {}
    for item in listed:
        part = _part_of(root, item.uri)
        if not part.endswith("/") and (days_in(part) or re.search(r"\d{8}", part)):
            head, *_, tail = re.split(r"\d", part)
            part = glob.escape(head) + "*" + glob.escape(tail)
        parts.setdefault(part, []).append(item)
    patterns = [part for part in parts if "*" in part]
    for pattern in patterns:  # a pattern that takes another part's files would read them twice
        names = [_part_of(root, item.uri) for other, items in parts.items() if other != pattern for item in items]
        if pattern.startswith("*") or any(fnmatchcase(name.rstrip("/"), pattern) for name in names):
            return {}
    return parts


def _is_day(part: str) -> bool:
    name = part.rstrip("/")
    return part.endswith("/") and bool(days_in(f"/{name}/") or re.fullmatch(r"(?:\w+=)?\d{1,8}|\w+=.*", name))


def _part(root: str, part: str, objects: list[LogObject], source: SourceSettings) -> SourceProposal:
    look = look_at(objects, source, part.endswith("/") and len(objects) >= PER_FOLDER)
    local = part if "*" in part else glob.escape(part) if glob.has_magic(part) and "://" in root else part
    proposal = SourceProposal(name_of(part), f"{root}{local}".rstrip("/"), "unknown", look)
    return replace(proposal, kind=_kind(proposal))


def _kind(proposal: SourceProposal) -> Kind:
    stem = Path(proposal.uri.rstrip("/")).name.partition(".")[0]
    if EVALS.match(stem):
        return "evals"
    if SEEDS.match(stem) and (proposal.look.formats or proposal.look.proposed):
        return "seeds"
    if proposal.look.proposed and not proposal.look.formats:
        return "logs" if proposal.look.proposed.keys() & {"request", "messages", "prompt"} else "feedback"
    if proposal.look.holds_feedback_only:
        return "feedback"
    return "logs" if proposal.look.holds_logs else "unknown"


def name_of(uri: str) -> str:
    for part in reversed(re.split(r"[/\\]", uri.removeprefix("file://"))):
        stem = re.split(r"\.(?:jsonl?|ndjson|parquet|csv|tsv|tab|txt|log|gz|zst)", part)[0]
        name = re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")[:40].strip("-_")
        if name and not re.fullmatch(r"[\d_-]+|dt-.*", name) and ":" not in part:
            return name
    return "logs"


def _with_unique_names(proposals: list[SourceProposal]) -> list[SourceProposal]:
    taken: set[str] = set()
    named = []
    for each in proposals:
        name, number = each.name, 2
        while name in taken:
            name, number = f"{each.name}-{number}", number + 1
        taken.add(name)
        named.append(replace(each, name=name))
    return named
