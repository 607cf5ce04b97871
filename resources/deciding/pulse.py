"""Whether anything changed that a decision depends on: a few looks at files, so that an idle tick of a sensor costs next to
nothing.

    pulse(lake, facts)        # another text after any change
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from resources.deciding.base_revision import hashed_so_far, stamp_of
from resources.deciding.facts import RecipeFacts
from resources.deciding.requests import folder_of
from resources.lake import Lake
from resources.slice_stamps import slice_stamp
from resources.tables import Tables

TABLES = ("cleaned_interactions", "drift", "serving_metrics", "retraining_decisions")
POINTERS = ("models/{}/speculator/current.json", "models/{}/sft_model/current.json", "models/{}/base_model/current.json",
            "datasets/{}/evaluation_report/current.json", "endpoints/{}.json")


def pulse(lake: Lake, facts: RecipeFacts) -> str:
    """A digest over the workload's slices of the tables, its pointers, requests, schedule, and the base model's files."""
    tables = Tables(lake)
    parts = [facts.cron, *(slice_stamp(tables, name, facts.workload) for name in TABLES)]
    for pattern in POINTERS:
        path = lake.root / pattern.format(facts.workload)
        if pattern.startswith("endpoints"):
            lake.mirror.pull_file(path)
        parts.append(_stat(path))
    requests = folder_of(lake, facts.workload)
    lake.mirror.pull_folder(requests)
    parts.append(_stat(requests))
    if facts.base_directory:
        parts += [stamp_of(Path(facts.base_directory)), hashed_so_far(lake, facts.workload)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _stat(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"
