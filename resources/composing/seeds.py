"""Imports seed examples: curated or synthetic examples that are added to the training split.

    report = import_seeds({"handmade": SourceSettings(uri="seeds.jsonl")}, output)

Seeds are read like logs (`reading.staging`): any format, JSON, JSON lines or Parquet, compressed or not, a file or a folder,
in place. A record with several turns is one example; a preference gives its chosen answer. Writes into `output`:

    seeds.parquet        row_id, source, source_uri, source_row, messages, tools, text, token_ids, labels, content_sha256
    bad_lines.parquet    source, source_uri, source_row, message: lines that cannot be used, and why

`text` is plain text to learn, `token_ids` with `labels` (-100: not learnt) pre-tokenized text; the messages of such rows are
[]. lines = rows + duplicates + bad, for every source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from resources.reading.formats import FORMATS
from resources.reading.ledger import Entry
from resources.reading.sources import SourceError, SourceSettings, list_objects
from resources.reading.staging import staging
from resources.sql_files import rows, run

SEEDS = pa.schema(
    [("row_id", pa.string()), ("source", pa.string()), ("source_uri", pa.string()), ("source_row", pa.int64()),
     ("messages", pa.string()), ("tools", pa.string()), ("text", pa.string()), ("token_ids", pa.list_(pa.int32())),
     ("labels", pa.list_(pa.int32())), ("content_sha256", pa.string())]
)
BAD_LINES = pa.schema(
    [("source", pa.string()), ("source_uri", pa.string()), ("source_row", pa.int64()), ("message", pa.string())]
)
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


class SeedError(Exception):
    """A seed file cannot be read; the message names it."""


@dataclass
class SeedReport:
    """lines = rows + duplicates + bad, in total and by source."""

    lines: int = 0
    rows: int = 0
    duplicates: int = 0
    bad: int = 0
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_metrics(self) -> dict[str, Any]:
        return asdict(self)


def import_seeds(seeds: Mapping[str, SourceSettings | Path | str], output: Path) -> SeedReport:
    """Writes the usable lines of every seed file. Bad lines are counted and recorded; they do not stop the import.

    Raises SeedError for a file that is missing, unreadable, or has no usable line.
    """
    sources = {name: seed if isinstance(seed, SourceSettings) else SourceSettings(uri=str(seed))
               for name, seed in sorted(seeds.items())}
    report = SeedReport()
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    seen: set[str] = set()
    for source, settings in sources.items():
        counts = {"lines": 0, "rows": 0, "duplicates": 0, "bad": 0}
        for place, example in _examples(source, settings):
            counts["lines"] += 1
            try:
                row = _row(example)
            except ValueError as error:
                counts["bad"] += 1
                bad.append({**place, "message": str(error)})
                continue
            if row["content_sha256"] in seen:
                counts["duplicates"] += 1
                continue
            seen.add(row["content_sha256"])
            counts["rows"] += 1
            good.append({"row_id": f"seed:{row['content_sha256'][:24]}", **place, **row})
        if not counts["rows"] and not counts["duplicates"]:
            why = f"; the first: {bad[-counts['bad']]['message']}" if counts["bad"] else ""
            raise SeedError(f"seeds {source}: {settings.uri} holds no usable line, of {counts['lines']}{why}")
        report.by_source[source] = counts
    for name in ("lines", "rows", "duplicates", "bad"):
        setattr(report, name, sum(counts[name] for counts in report.by_source.values()))
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(good, schema=SEEDS), output / "seeds.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(bad, schema=BAD_LINES), output / "bad_lines.parquet", compression="zstd")
    return report


def _examples(source: str, settings: SourceSettings) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The position and content of each example, in file and line order; a quarantined one has `problem`."""
    try:
        entries = [
            Entry(source, item.uri, item.etag, item.bytes, item.modified) for item in list_objects(source, settings)
        ]
    except SourceError as error:
        raise SeedError(f"there is no seed file {settings.uri}: {error}") from error
    turns = [name for name, form in FORMATS.items() if form.turns]
    with staging("seeds", {source: settings}) as stage:
        for batch in stage.batches(entries):
            if batch.failed:
                raise SeedError(f"seed file {batch.failed[0].uri} cannot be read to its end")
            run(stage.connection, "curating/macros/labels_of")
            for example in rows(stage.connection, "composing/seeds/examples", turns=turns).to_pylist():
                yield {name: example.pop(name) for name in ("source", "source_uri", "source_row")}, example


def _row(example: dict[str, Any]) -> dict[str, Any]:
    """An example as a row of seeds. Raises ValueError for an unusable example."""
    if example["problem"]:
        raise ValueError(example["problem"])
    if example["status"] == "text":
        text = json.loads(example["completion"])["content"]
        return {"messages": "[]", "text": text, "content_sha256": _digest(f"text\0{text}")}
    if example["status"] == "tokens":
        ids, labels = example["token_ids"], example["labels"]
        return {"messages": "[]", "token_ids": ids, "labels": labels, "content_sha256": _digest(f"tokens\0{ids}\0{labels}")}
    if example["status"] == "failure":
        raise ValueError("the request failed: there is no answer to learn from")
    if example["completion"] is None:
        raise ValueError("the last message is not the assistant's")
    answer = json.loads(example["completion"])
    if example["reasoning"]:
        answer["reasoning_content"] = example["reasoning"]
    messages = _conversation([*json.loads(example["messages"]), {"role": "assistant", **answer}])
    tools = json.loads(example["tools"]) if example["tools"] else None
    if tools is not None and not isinstance(tools, list):
        raise ValueError("`tools` is not a list")
    text = json.dumps(messages, ensure_ascii=False)
    tools_text = json.dumps(tools, ensure_ascii=False) if tools else None
    return {"messages": text, "tools": tools_text, "content_sha256": _digest(f"{text}\0{tools_text or ''}")}


def _conversation(told: list[Any]) -> list[dict[str, Any]]:
    """The messages, each answer with its weight. Raises ValueError for one without a known role or content."""
    messages = []
    for at, message in enumerate(told):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"message {at} has no role; known: {', '.join(sorted(ROLES))}")
        called = message.get("tool_calls") or message.get("function_call")
        if not isinstance(message.get("content"), str | list) and not called:
            raise ValueError(f"message {at} has neither content nor tool_calls")
        if message.get("weight", 1) not in (0, 1):
            raise ValueError(f"message {at} has a weight that is neither 0 nor 1")
        answers = {"weight": int(message.get("weight", 1))} if message["role"] == "assistant" else {}
        messages.append({**message, **answers})
    return messages


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
