"""Prints what an erasure would touch, or touched."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path

from rich.console import Console

from model_ops.jobs import counted, size
from pipelines.terminal import say
from resources.erasing import ErasurePlan
from resources.lake import LakeLayout

MOST_SHOWN = 20
"""Most files, pages and source objects that are named; --format json names all."""


def plan_as_json(plan: ErasurePlan) -> str:
    """Everything, with stable keys."""
    content = {
        **asdict(plan),
        "answers": [{"path": path, **asdict(answers)} for path, answers in plan.answers.items()],
        "tainted": [{"node": taint.node, "rows": taint.rows, "at": taint.at} for taint in plan.tainted],
    }
    return json.dumps(
        content, indent=2, default=lambda value: value.isoformat() if isinstance(value, datetime | date) else str(value)
    )


def print_plan(plan: ErasurePlan, lake: LakeLayout, console: Console) -> None:
    """Sentences about an erasure. The hints of one that was made were printed before it."""
    applied = bool(plan.erasure)
    if plan.completed:
        say(console, f"Completed first: {counted(plan.completed, 'erasure')} that had been stopped.")
    if plan.is_empty:
        said = (
            "It was erased before, and its records are not read again."
            if plan.is_known
            else "Nothing was written."
            if plan.near or plan.unmapped
            else "Nothing was written; --apply --even-unseen writes a tombstone for records that are read later."
        )
        if applied:
            said = "A tombstone was written: its records will not be read."
        say(console, f"No row of {lake.place} belongs to this {plan.kind}. {said}")
        if not applied:
            print_hints([*plan.near, *plan.unmapped], console)
        if plan.vacuumed:
            say(console, "Old files of the tables were removed: earlier versions of the tables can no longer be read.")
        return
    workloads = ", ".join(f"{rows:,} of {workload}" for workload, rows in plan.workloads.items()) or "none"
    verb = "Erased" if applied else "Would erase"
    say(console, f"{verb}: {counted(plan.interactions, 'interaction')} ({workloads}).")
    for title, lines in _sections(plan, lake):
        if lines:
            say(console, f"{title}:")
            for line in lines[:MOST_SHOWN]:
                say(console, f"  {line}")
            if len(lines) > MOST_SHOWN:
                say(console, f"  and {len(lines) - MOST_SHOWN:,} more (--format json names all)")
    if not applied:
        print_hints([*plan.near, *plan.unmapped], console)
    for sentence in _remarks(plan):
        say(console, f"! {sentence}", "yellow")
    if not applied:
        say(console, "This was a dry run: nothing was written. Add --apply to erase.")


def print_hints(sentences: list[str], console: Console) -> None:
    """Ids of almost the asked one, and keys that nothing reads where it stands."""
    for sentence in sentences:
        say(console, f"! {sentence}.", "yellow")


def _sections(plan: ErasurePlan, lake: LakeLayout) -> Iterator[tuple[str, list[str]]]:
    yield "Rows of tables", [f"{table}: {rows:,}{_remaining(table)}" for table, rows in plan.tables.items()]
    yield "Rows of datasets", [f"{hit.node.removeprefix('dataset:')} {hit.path}: {hit.rows:,}" for hit in plan.files]
    yield "Interactions that stay and lose their cleaned rows, which go on from an erased response", plan.later
    yield (
        "Kept answers of teachers",
        [
            f"{_inside(path, lake)}: {answers.theirs:,} of these rows, {answers.unattributed:,} that no finished dataset names"
            for path, answers in plan.answers.items()
        ],
    )
    yield (
        "Reports, logs and Dagster's history",
        [_inside(page.path, lake) + (" (a model's file, which is not changed)" if page.model else "") for page in plan.pages],
    )
    yield "Tainted: weights that learnt erased rows", [f"{taint.node}: {counted(taint.rows, 'row')}" for taint in plan.tainted]
    yield "Endpoints that name a tainted release", plan.endpoints
    yield (
        "Source objects, which a person has to clean",
        [
            f"{place.uri}: {counted(place.records, 'record')}, line{'s' if len(place.lines) > 1 else ''} "
            + ", ".join(map(str, place.lines))
            + (", ..." if place.records > len(place.lines) else "")
            for place in plan.places
        ],
    )


def _remarks(plan: ErasurePlan) -> Iterator[str]:
    applied = bool(plan.erasure)
    if plan.unfinished:
        folders = counted(plan.unfinished, "folder")
        yield f"Unfinished work of stopped runs was removed, since it may have held the rows: {folders}."
    sessions, rows = plan.shared
    if rows:
        yield (
            f"{counted(rows, 'row')} of other users stay in {counted(sessions, 'session')} that they share, and may repeat "
            "the text: forget these sessions too if they must go."
        )
    if plan.tainted:
        yield (
            "Weights cannot lose rows: run the recipe again for models without them, then approve the new release. With "
            "release.gates.erased_rows: 0, tainted releases are refused."
        )
    if plan.vacuumed and applied:
        yield "Old files of the tables were removed: earlier versions of the tables can no longer be read."
    elif applied and plan.old_bytes:
        yield (
            f"Old files of the tables ({size(plan.old_bytes)}) still hold the rows: the same command with --apply --vacuum "
            "removes them, after which earlier versions of the tables can no longer be read."
        )
    elif not applied:
        yield "Old files of the tables keep the rows until they are removed: --vacuum does it, and ends time travel."


def _remaining(table: str) -> str:
    """What happens to the rows of a table that do not just go."""
    remaining = {"decisions": " (those of ingest keep the record's place)", "quarantine": " (text removed, place kept)"}
    return remaining.get(table, "")


def _inside(path: Path, lake: LakeLayout) -> str:
    return str(path.relative_to(lake.root)) if path.is_relative_to(lake.root) else str(path)
