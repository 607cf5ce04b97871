"""Seed examples: curated or synthetic conversations that join the traffic in the training split.

    report = import_seeds({"handmade": Path("seeds.jsonl")}, output)

Each line of a JSON Lines file (plain or compressed) is one object with `messages` in the OpenAI shape, the last of
them from the assistant, and optionally `tools`. Writes into `output`:

    seeds.parquet        row_id, source, source_uri, source_row, messages, tools, content_sha256
    bad_lines.parquet    source, source_uri, source_row, message: what could not be used, and why

lines = rows + duplicates + bad, for every source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

SEEDS = pa.schema(
    [("row_id", pa.string()), ("source", pa.string()), ("source_uri", pa.string()), ("source_row", pa.int64()),
     ("messages", pa.string()), ("tools", pa.string()), ("content_sha256", pa.string())]
)
BAD_LINES = pa.schema(
    [("source", pa.string()), ("source_uri", pa.string()), ("source_row", pa.int64()), ("message", pa.string())]
)
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


class SeedError(Exception):
    """A seed file that cannot be read at all; the message names it."""


@dataclass
class SeedReport:
    """lines = rows + duplicates + bad, in all and by source."""

    lines: int = 0
    rows: int = 0
    duplicates: int = 0
    bad: int = 0
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_metrics(self) -> dict[str, Any]:
        return asdict(self)


def import_seeds(seeds: dict[str, Path | str], output: Path) -> SeedReport:
    """Writes the usable lines of every seed file. A bad line is counted and told, never a reason to stop.

    Raises SeedError for a file that is missing, unreadable, or holds no usable line.
    """
    report = SeedReport()
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    seen: set[str] = set()
    for source, uri in sorted(seeds.items()):
        counts = {"lines": 0, "rows": 0, "duplicates": 0, "bad": 0}
        for path, number, line in _lines(str(uri)):
            counts["lines"] += 1
            try:
                row = _row(line)
            except ValueError as error:
                counts["bad"] += 1
                bad.append({"source": source, "source_uri": path, "source_row": number, "message": str(error)})
                continue
            if row["content_sha256"] in seen:
                counts["duplicates"] += 1
                continue
            seen.add(row["content_sha256"])
            counts["rows"] += 1
            identity = f"seed:{row['content_sha256'][:24]}"
            good.append({"row_id": identity, "source": source, "source_uri": path, "source_row": number, **row})
        if not counts["rows"] and not counts["duplicates"]:
            why = f"; the first: {bad[-counts['bad']]['message']}" if counts["bad"] else ""
            raise SeedError(f"seeds {source}: {uri} holds no usable line, of {counts['lines']}{why}")
        report.by_source[source] = counts
    for name in ("lines", "rows", "duplicates", "bad"):
        setattr(report, name, sum(counts[name] for counts in report.by_source.values()))
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(good, schema=SEEDS), output / "seeds.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(bad, schema=BAD_LINES), output / "bad_lines.parquet", compression="zstd")
    return report


def _lines(uri: str) -> Iterator[tuple[str, int, bytes]]:
    try:
        files = fsspec.open_files(uri, "rb", compression="infer")
        files.sort(key=lambda file: file.path)
        if not files:
            raise FileNotFoundError(uri)
        for file in files:
            with file as content:
                for number, line in enumerate(content, start=1):
                    if line.strip():
                        yield file.path, number, line
    except FileNotFoundError as error:
        raise SeedError(f"there is no seed file {uri}") from error
    except (OSError, EOFError) as error:
        raise SeedError(f"seed file {uri} cannot be read: {type(error).__name__}: {error}") from error


def _row(line: bytes) -> dict[str, Any]:
    """A line as messages, tools and digest. Raises ValueError with what is wrong with it."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list) or not record["messages"]:
        raise ValueError("no `messages`: an object with a list of messages is expected")
    messages = []
    for at, message in enumerate(record["messages"]):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"message {at} has no role; known: {', '.join(sorted(ROLES))}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise ValueError(f"message {at} has neither content nor tool_calls")
        if message.get("weight", 1) not in (0, 1):
            raise ValueError(f"message {at} has a weight that is neither 0 nor 1")
        answers = {"weight": int(message.get("weight", 1))} if message["role"] == "assistant" else {}
        messages.append({**message, **answers})
    if messages[-1]["role"] != "assistant":
        raise ValueError("the last message is not the assistant's")
    if not any(message.get("weight") for message in messages):
        raise ValueError("every assistant message has weight 0: nothing to learn")
    tools = record.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ValueError("`tools` is not a list")
    text = json.dumps(messages, ensure_ascii=False)
    tools_text = json.dumps(tools, ensure_ascii=False) if tools else None
    digest = hashlib.sha256(f"{text}\0{tools_text or ''}".encode()).hexdigest()
    return {"messages": text, "tools": tools_text, "content_sha256": digest}
