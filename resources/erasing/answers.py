"""Erases answers that teachers gave to erased rows: lines of answers/<workload>.jsonl.

    found = answers_to_erase(lake, selection, sought)      # {path: Answers(theirs=3, unattributed=1)}
    erase_answers(path, keys, sought)

An answer is kept under the hash of its request. It is theirs if a dataset names that hash with an erased row, or if its text is
sought. Where a workload loses rows, answers that no finished dataset names go too: nothing says whose they are, and the
teacher can be asked again. Scores of a judge hold no text and stay.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_ops.atomic_files import replaced
from resources.erasing.sought import Sought
from resources.lake import Lake


@dataclass(frozen=True)
class Answers:
    """Numbers of lines: of erased rows, and of rows that no dataset has."""

    theirs: int
    unattributed: int


def answers_to_erase(
    lake: Lake, workloads: Collection[str], keys: Mapping[str, Collection[str]], sought: Sought
) -> dict[Path, Answers]:
    """Files with answers to erase. keys: of artefact_rows.kept_under."""
    found = {}
    for workload in sorted(workloads):
        path = lake.root / "answers" / f"{workload}.jsonl"
        if path.exists():
            with path.open("rb") as lines:
                whose = [_whose(line, keys.get(workload, ()), keys[""], sought) for line in lines]
            if any(whose):
                found[path] = Answers(whose.count("theirs"), whose.count("unattributed"))
    return found


def erase_answers(path: Path, keys: Mapping[str, Collection[str]], sought: Sought) -> None:
    """Replaces the file by its other lines."""
    with replaced(path) as temporary, path.open("rb") as lines, temporary.open("wb") as target:
        target.writelines(line for line in lines if not _whose(line, keys.get(path.stem, ()), keys[""], sought))


def _whose(line: bytes, theirs: Collection[str], named: Collection[str], sought: Sought) -> str:
    """`theirs`, `unattributed`, or "" for a line that stays."""
    try:
        known = json.loads(line)
        key, how = known["key"], known["answer"]["finish_reason"]
    except (ValueError, KeyError, TypeError):
        return "unattributed"  # what a killed process left
    if key in theirs or sought.in_bytes(line):
        return "theirs"
    return "unattributed" if key not in named and how != "judge" else ""
