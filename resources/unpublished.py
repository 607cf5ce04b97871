"""Removes what an erasure on another machine could not see: finished here, not published, and older than the erasure.

    drop_before_erasure(lake)       # before what is here is published

Datasets, releases and answers that were not in the bucket kept the rows that the erasure took from it. The next run makes
datasets and releases again, from the rows that are left, and asks a teacher again. Models stay: their weights are never
rewritten, and they count as tainted by the dataset that they were made from. A lake on a disk has nothing unpublished.
"""

from __future__ import annotations

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
import pyarrow.parquet as pq

from resources.lake import Lake
from resources.tables import Tables
from stores.mirror.mirror import Mirror

EMBEDDINGS = ".remembered/embeddings"
"""Vectors of prompts, by workload, model and day (resources/drifting/prompt_vectors.py)."""
CLOCKS_DIFFER = timedelta(minutes=5)
"""What clocks of two machines may differ by."""


def drop_before_erasure(lake: Lake) -> None:
    """Removes datasets, releases and answers of this machine that were not published before the last erasure, and embeddings
    that were kept before it."""
    if not isinstance(lake.mirror, Mirror):
        return
    own = {path: lines for path in sorted((lake.root / "answers").glob("*.jsonl")) if (lines := lake.mirror.own_answers(path))}
    versions = [version for version in lake.mirror.unpublished() if not version.is_relative_to(lake.artefacts("model"))]
    vectors = [path for path in (lake.root / EMBEDDINGS).rglob("*.parquet") if path.is_file()]
    if not (own or versions or vectors) or (erased_at := _last_erasure(lake)) is None:
        return
    for version in versions:
        if _time(json.loads((version / "manifest.json").read_bytes())["created_at"]) < erased_at:
            (version / "manifest.json").unlink()  # from now on it is a leftover of a stopped run
            shutil.rmtree(version)
            _say(f"{version.relative_to(lake.root)} was finished here and not published before rows were erased on another "
                 "machine: it is removed, and the next run makes it again")
    for path in vectors:
        if datetime.fromtimestamp(path.stat().st_mtime, UTC) < erased_at:
            path.unlink(missing_ok=True)  # they are made again when their day is compared
    for path, lines in own.items():
        old = [line for line in lines if _is_before(line, erased_at)]
        if old:
            lake.mirror.drop_answers(path, old)
            _say(f"{len(old)} answers of {path.relative_to(lake.root)} were not published before rows were erased on another "
                 "machine: they are removed, and the next run asks again")


def _last_erasure(lake: Lake) -> datetime | None:
    times = [pc.max(pq.ParquetFile(file).read(["ts"])["ts"]).as_py() for file in Tables(lake).files("erasures")]
    last = max((_time(time) for time in times if time is not None), default=None)
    return last + CLOCKS_DIFFER if last is not None else None


def _is_before(line: bytes, erased_at: datetime) -> bool:
    """Whether an answer with text was given before; what cannot be read counts as such."""
    try:
        kept = json.loads(line)
        return kept["answer"]["finish_reason"] != "judge" and _time(kept["asked_at"]) < erased_at
    except (ValueError, KeyError, TypeError):
        return True


def _time(given: str | datetime) -> datetime:
    found = datetime.fromisoformat(given) if isinstance(given, str) else given
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _say(message: str) -> None:
    logging.getLogger(__name__).warning(message)
