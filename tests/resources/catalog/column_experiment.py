"""Finds by experiment which input columns an output column is made from: one value of the input is changed, the step is run
again, and the columns of rows that both runs have are compared.

    found = experiment("cleaned_interactions", folder)      # {"language": {"interactions.completion"}, ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from interaction_rows import days_of, interaction, store, thumb

from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

GERMAN = "und das ist die ganze Geschichte, die der alte Mann in dem Dorf am Abend immer wieder erzählte " * 5
TELLING = {
    "error": ["boom"],
    "finish_reason": ["length"],
    "status": ["error"],
    "label": ["down"],
    "name": ["bug"],
    "language": ["de"],
}
"""Values that decide something, by column."""

Rows = dict[str, list[dict[str, Any]]]
"""Rows of the step's inputs, by table or dataset."""

CURATED: list[pa.Schema] = []
"""The columns of curated.parquet, as the last run wrote them."""
JUDGED = CurationSettings(judge={"base_url": "http://localhost:1", "model": "judge"})

TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "alpha_tool", "parameters": {"type": "object", "properties": {}}}}]
)


def interactions() -> list[dict[str, Any]]:
    """Three sessions, each with everything that a column can be made from."""
    return [
        interaction(
            n,
            f"please explain alpha number {word} in detail, and what it is good for in a garden of stones",
            f"the alpha called {word} is {word} for {more}, which every gardener of the old town knows quite well",
            session_id=f"s{n}",
            user_hash=f"u{n}",
            tools=TOOLS,
            reasoning=f"alpha thoughts on {word}",
            prompt_tokens=20,
            params=json.dumps({"reasoning_effort": "low", "temperature": 0.5}),
            trace_id=f"t{n}",
            alias_id=f"a{n}",
            completion_tokens=20,
            served_model_digest="d",
            workload_name="tutor",
            source_row=n,
        )
        for n, word, more in ((1, "mill", "water"), (2, "bread", "hunger"), (3, "wheel", "carts"))
    ]


def experiment(step: str, folder: Path) -> dict[str, set[str]]:
    """Output column -> input columns, as `table.column`, whose value changes it."""
    inputs, run = STEPS[step]
    rows = inputs(folder / "inputs")
    before = run(rows, folder / "before")
    found: dict[str, set[str]] = {column: set() for columns in before.values() for column in columns}
    for number, (table, column, changed) in enumerate(_changes(rows)):
        try:
            after = run(changed, folder / str(number))
        except Exception:  # a value that cannot be changed in this way says nothing
            continue
        for key in before.keys() & after.keys():
            for name, value in before[key].items():
                if after[key].get(name) != value:
                    found[name].add(f"{table}.{column}")
    return found


def _changes(rows: Rows) -> Iterator[tuple[str, str, Rows]]:
    """Inputs in which one value differs: of the second row, of each judgement."""
    for table, listed in rows.items():
        if not listed:
            continue
        for place in range(len(listed)) if table == "judgements" else [min(1, len(listed) - 1)]:
            for column, value in listed[place].items():
                for other in [*_others(value), *TELLING.get(column, [])]:
                    changed = [dict(row) for row in listed]
                    changed[place][column] = other
                    yield table, column, {**rows, table: changed}


def _others(value: Any) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        texts = [value.replace("alpha", found) for found in ("omegas", "a@example.com", GERMAN)] if "alpha" in value else []
        return [*texts, *([value.replace("low", "high")] if "effort" in value else [])] or [f"{value}x"]
    if isinstance(value, int | float):
        return [value + 1]
    if isinstance(value, datetime | date):
        return [value + (timedelta(minutes=1) if isinstance(value, datetime) else timedelta(days=1))]
    if isinstance(value, list) and value and isinstance(value[-1], int):
        return [[*value[:-1], value[-1] + 1]]
    return []


def _log_rows(_: Path) -> Rows:
    return {"interactions": interactions(), "feedback": [thumb(1, interaction_id="i2", source="person")]}


def _clean(rows: Rows, folder: Path) -> dict[str, dict[str, Any]]:
    tables = _tables(rows, folder)
    clean(tables, "tutor", days_of(rows["interactions"]), CurationSettings())
    return _by_id(tables.open("cleaned_interactions").to_pyarrow_table().to_pylist(), "interaction_id")


def _cleaned_rows(folder: Path) -> Rows:
    rows = _log_rows(folder)
    tables = _tables(rows, folder)
    clean(tables, "tutor", days_of(rows["interactions"]), CurationSettings())
    cleaned = tables.open("cleaned_interactions").to_pyarrow_table().to_pylist()
    judged = [
        dict.fromkeys(SCHEMAS["judgements"].names)
        | {
            "workload": "tutor",
            "dt": row["dt"],
            "interaction_id": row["interaction_id"],
            "content_sha256": row["content_sha256"],
            "name": name,
            "score": 7.0,
            "ts": row["ts"],
            "model": "judge",
            "prompt_sha256": JUDGED.judge.prompt_sha256,
        }
        for row in cleaned
        for name in ("quality", "difficulty")
    ]
    return {"cleaned_interactions": cleaned, **rows, "judgements": judged}


def _curate(rows: Rows, folder: Path) -> dict[str, dict[str, Any]]:
    out = folder / "out"
    curate(_tables(rows, folder), "tutor", out, JUDGED, None)
    return _by_id(pq.read_table(out / "curated.parquet").to_pylist(), "interaction_id")


def _curated_rows(folder: Path) -> Rows:
    rows = _cleaned_rows(folder / "cleaned")
    curate(_tables(rows, folder), "tutor", folder / "out", JUDGED, None)
    table = pq.read_table(folder / "out" / "curated.parquet")
    CURATED.append(table.schema)
    return {"curated_interactions": table.to_pylist()}


def _build(rows: Rows, folder: Path) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows["curated_interactions"], schema=CURATED[-1]), folder / "curated.parquet")
    build_sft_dataset(
        folder / "curated.parquet",
        None,
        folder / "out",
        DatasetSettings(test_share=0, validation_share=0),
        Tables(LakeLayout.open(folder / "lake")),
    )
    return _by_id(pq.read_table(folder / "out" / "train.parquet").to_pylist(), "row_id")


def _tables(rows: Rows, folder: Path) -> Tables:
    tables = Tables(LakeLayout.open(folder / "lake"))
    for name, listed in rows.items():
        store(tables, name, listed)
    return tables


def _by_id(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows}


STEPS: dict[str, tuple[Callable[[Path], Rows], Callable[[Rows, Path], dict[str, dict[str, Any]]]]] = {
    "cleaned_interactions": (_log_rows, _clean),
    "curated_interactions": (_cleaned_rows, _curate),
    "sft_dataset": (_curated_rows, _build),
}
