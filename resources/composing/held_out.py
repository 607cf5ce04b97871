"""Searches the training rows behind an artefact for rows that one of its datasets holds out, by interaction and by content.
Every dataset in the artefact's ancestry counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from resources.artefacts import ARTEFACTS
from resources.lake import LakeLayout, rows, workbench
from resources.manifests import Manifest, ManifestError, read_manifest

_COLUMNS = {"row_id", "interaction_ids", "content_sha256"}


@dataclass(frozen=True)
class Leak:
    """Rows of one dataset's training split that another holds out."""

    learnt: str
    held: str
    rows: int
    example: str

    def __str__(self) -> str:
        return f"{self.rows:,} training rows of {self.learnt} are held out in {self.held}, such as {self.example}"


def held_out_in_training(lake: LakeLayout, manifest: Manifest) -> list[Leak]:
    """The leaks behind an artefact; empty if no held-out row is learnt."""
    learnt: list[str] = []
    held: list[str] = []
    for directory in datasets_behind(lake, manifest):
        for split, files in (("train", learnt), ("validation", held), ("test", held)):
            for path in (directory / f"{split}.parquet", directory / f"unpaired_{split}.parquet"):
                if path.exists() and set(pq.read_schema(path).names) >= _COLUMNS:
                    files.append(str(path))
    if not learnt or not held:
        return []
    with workbench() as connection:
        leaks = rows(connection, "composing/held_out/learnt_and_held", learnt=learnt, held=held).to_pylist()
    return [
        Leak(_named(each["learnt"]), f"{_named(each['held'])} ({Path(each['held']).stem})", each["rows"], each["example"])
        for each in leaks
    ]


def datasets_behind(lake: LakeLayout, manifest: Manifest) -> Iterator[Path]:
    seen, waiting = set(), [manifest]
    while waiting:
        each = waiting.pop()
        if (each.kind, each.name, each.version) in seen:
            continue
        seen.add((each.kind, each.name, each.version))
        if each.kind == "dataset":
            yield lake.artefacts("dataset") / each.name / each.version
        for item in each.inputs:
            if item.kind in ARTEFACTS:
                try:
                    waiting.append(read_manifest(lake.artefacts(item.kind) / item.name / item.version))
                except ManifestError:
                    continue


def _named(file: str) -> str:
    workload, name, version = Path(file).parts[-4:-1]
    return f"{workload}/{name}@{version}"
