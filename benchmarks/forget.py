"""Erases one user from a lake, and searches every byte of it for what is left.

    python -m benchmarks.forget              # 1,000,000 interactions over 30 days; most of the time goes to making the lake
    python -m benchmarks.forget --quick      # 20,000 interactions

Traffic: that of benchmarks/clean.py; one session in a thousand is the user's, with a word of their own in every text of
theirs. The lake is made by the project's own steps: cleaned rows with their decisions, curated rows, a dataset; and a report,
a log, a kept answer and a history of Dagster that show the user's texts.

seconds: `forget` with --vacuum, from the tombstone to the last old file removed. leftovers: places that still hold the word
(benchmarks/lake_bytes.py: raw bytes and every decompressed value); places_before: the same before.
"""

import argparse
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from benchmarks.clean import WORKLOAD, traffic
from benchmarks.lake_bytes import places_of
from benchmarks.record import record
from resources.artefacts.registry import Registry
from resources.catalog.build import rebuild
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.datasets import build_sft_dataset
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.user_hash import keyed_hash
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import Input, Manifest

ROWS, QUICK_ROWS, DAYS = 1_000_000, 20_000, 30
ONE_IN = 1_000
WORD = "zweihundertsiebenundvierzigfach"
SETTINGS = CurationSettings(decontamination={"enabled": False})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows instead of {ROWS}; nothing is recorded")
    parser.add_argument("--rows", type=int, help="another number of rows; nothing is recorded")
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        lake = LakeLayout.open(Path(folder) / "lake")
        began = time.monotonic()
        theirs = _fill(lake, rows)
        made = time.monotonic() - began
        before = places_of({WORD}, lake.root)
        began = time.monotonic()
        plan = forget(lake, ask_for(Tables(lake), "user", "the user"), Actor("benchmark", "benchmark"), vacuum=True)
        seconds = time.monotonic() - began
        began = time.monotonic()
        left = places_of({WORD}, lake.root)
        searched = time.monotonic() - began
        for place in left:
            print(f"left: {place}")
        if plan.interactions != theirs:
            raise SystemExit(f"the user has {theirs} interactions, and {plan.interactions} were erased")
        stayed = Tables(lake).open("interactions").to_pyarrow_table(columns=["interaction_id"]).num_rows
        if stayed != rows - theirs:
            raise SystemExit(f"{rows - theirs} interactions of others should stay, and {stayed} did")
    figures = {
        "seconds": round(seconds, 1),
        "leftovers": len(left),
        "rows": rows,
        "erased": theirs,
        "places_before": len(before),
        "dataset_rows_erased": sum(hit.rows for hit in plan.files),
        "seconds_to_make_the_lake": round(made),
        "seconds_to_search": round(searched),
    }
    record("forget", figures, keep=not (given.quick or given.rows))


def _fill(lake: LakeLayout, rows: int) -> int:
    """Makes the lake; returns the number of the user's interactions."""
    tables, registry, theirs = Tables(lake), Registry(lake, WORKLOAD), 0
    for chunk in traffic(rows, DAYS):
        marked, count = _marked(chunk)
        theirs += count
        tables.append("interactions", marked)
    clean(tables, WORKLOAD, sorted(tables.rows_by_day("interactions", WORKLOAD)), SETTINGS)
    source = Input(kind="table", name="cleaned_interactions", digest="0" * 64)
    curated = _made(registry, "curated_interactions", [source], lambda output: curate(tables, WORKLOAD, output, SETTINGS, None))
    _made(
        registry,
        "sft_dataset",
        [curated.as_input()],
        lambda output: build_sft_dataset(
            registry.directory(curated) / "curated.parquet", None, output, DatasetSettings(), tables
        ),
    )
    _show(lake)
    rebuild(lake)
    return theirs


def _made(registry: Registry, name: str, inputs: list[Input], fill) -> Manifest:
    draft = registry.draft("dataset", name, op=name, sources=("benchmarks/forget.py",), config={}, inputs=inputs)
    fill(draft.directory)
    return registry.finish(draft, {})


def _marked(chunk: pa.Table) -> tuple[pa.Table, int]:
    """The rows, one session in ONE_IN with the user's hash and word. Sessions are numbered."""
    found, count = [], 0
    for row in chunk.to_pylist():
        is_theirs = int(row["session_id"][1:]) // 3 % ONE_IN == 0
        if is_theirs:
            count += 1
            row["user_hash"] = keyed_hash("the user")
            row["messages"] = _with_word(json.loads(row["messages"]))
            row["completion"] = _with_word([json.loads(row["completion"])])[1:-1]
        else:
            row["user_hash"] = keyed_hash(row["session_id"])
        found.append(row)
    return pa.Table.from_pylist(found, schema=SCHEMAS["interactions"]), count


def _with_word(messages: list[dict]) -> str:
    told = [
        {**message, "content": f"{message['content']} {WORD} it is"}
        if message["role"] in ("user", "assistant") and isinstance(message.get("content"), str)
        else message
        for message in messages
    ]
    return json.dumps(told)


def _show(lake: LakeLayout) -> None:
    """A report, a run's log, a teacher's answer and an event that show some of the user's texts."""
    rows = Tables(lake).open("interactions").to_pyarrow_table(columns=["messages"])["messages"].to_pylist()
    texts = [text for text in rows if WORD in text][:50]
    home = next((lake.artefacts("dataset") / WORKLOAD / "sft_dataset").glob("*/manifest.json")).parent
    (lake.dagster_home / "submitted" / "1").mkdir(parents=True)
    (lake.dagster_home / "submitted" / "1" / "run.log").write_text("\n".join(texts))
    (lake.root / "tracking").mkdir()
    (lake.root / "tracking" / f"{home.name}.md").write_text("\n\n".join(texts))
    (lake.root / "answers").mkdir()
    answer = {
        "model": "t",
        "message": {"content": texts[0]},
        "failure": "",
        "finish_reason": "stop",
        "prompt_tokens": 1,
        "answer_tokens": 1,
        "cost": 0.0,
    }
    (lake.root / "answers" / f"{WORKLOAD}.jsonl").write_text(json.dumps({"key": "k", "answer": answer}) + "\n")
    with closing(sqlite3.connect(lake.dagster_home / "events.db")) as database:
        database.execute("create table event_logs (id integer primary key, event text)")
        database.executemany("insert into event_logs (event) values (?)", [(json.dumps({"shown": text}),) for text in texts])
        database.commit()


if __name__ == "__main__":
    main()
