"""Digests of table slices of which only counts were kept: without new rows, such a slice counts as it was before.

    keep(lake, "tutor", before, after)                 # digests of all slices, before and after their rows were removed
    counted_as(lake, "tutor", "interactions", digest)  # the digest before, as long as nothing was written since

Otherwise artefacts that have learnt the rows would be stale, and a run without new logs would make them again from no rows.
Lies in <lake>/counts/<workload>.json. A digest names no row.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from model_ops.atomic_files import write_json
from resources.lake import Lake


class Kept(BaseModel):
    """A slice's digest before its rows were removed, and after."""

    model_config = ConfigDict(extra="forbid")

    before: str
    after: str


_FILE = TypeAdapter(dict[str, Kept])


def keep(lake: Lake, workload: str, before: dict[str, str], after: dict[str, str]) -> None:
    """Records both digests of each slice, by its name; replaces what earlier removals recorded."""
    place = _place(lake, workload)
    place.parent.mkdir(exist_ok=True)
    write_json(place, {name: {"before": before[name], "after": after[name]} for name in before})


def counted_as(lake: Lake, workload: str, name: str, digest: str) -> str:
    """The digest that a slice counts as."""
    kept = _read(lake, workload).get(name)
    return kept.before if kept is not None and kept.after == digest else digest


def counts_alone(lake: Lake, workload: str, digest: str) -> bool:
    """Whether a slice's digest is that of rows of which only counts were kept."""
    return any(kept.before == digest != kept.after for kept in _read(lake, workload).values())


def _read(lake: Lake, workload: str) -> dict[str, Kept]:
    try:
        return _FILE.validate_json(_place(lake, workload).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _place(lake: Lake, workload: str) -> Path:
    return lake.root / "counts" / f"{workload}.json"
