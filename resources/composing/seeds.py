"""Imports seed examples for the training split: seeds.parquet, bad_lines.parquet (lines that cannot be used, and why),
tokenizers.json. Files are read like logs, in place; of a dataset of the lake, its training rows. lines = rows + duplicates +
bad + erased, for every source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import vocabulary_digest, write_json
from resources.composing.dataset_schemas import BAD_LINES, SEEDS
from resources.composing.dataset_settings import SeedSettings
from resources.curating import MACROS, Decontamination, find_items, read_eval_items
from resources.digests import hash_key, keyed_hash
from resources.lake import (
    PARTITIONS,
    SCHEMAS,
    Tables,
    attach_files,
    attach_parquet,
    rows,
    run,
    sql_text,
    stream,
    workbench,
    write_rows,
)
from resources.reading import hash_erased, open_staging
from resources.records import FORMATS
from resources.sources import LedgerEntry, SourceError, SourceSettings, list_objects


@dataclass(frozen=True)
class SeedTombstones:
    """Tombstones that count in a workload, as (kind, hash)."""

    hashes: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, tables: Tables, workload: str) -> SeedTombstones:
        """The tombstones of a lake. Raises LakeError for tombstones of another key."""
        with workbench() as connection:
            _attach(connection, tables, workload)
            tombstones = rows(connection, "composing/seeds/tombstones").to_pylist()
        return cls(frozenset((row["kind"], row["sha256"]) for row in tombstones))

    @property
    def digest(self) -> str:
        """sha256 over the tombstones; "" if there is none."""
        text = "".join(f"{kind} {sha256}\n" for kind, sha256 in sorted(self.hashes))
        return hashlib.sha256(text.encode()).hexdigest() if text else ""

    def names(self, session_id: str | None, user_hash: str | None, ids: Iterable[str | None]) -> bool:
        """Whether a record names an erased user or session, or one of its ids is that of an erased request or interaction."""
        if not self.hashes:
            return False
        if user_hash is not None and ("user", user_hash) in self.hashes:
            return True
        if session_id is not None and ("session", keyed_hash(session_id)) in self.hashes:
            return True
        keyed = [keyed_hash(each) for each in ids if each is not None]
        return any((kind, each) in self.hashes for each in keyed for kind in ("interaction", "about"))


def drop_erased_seeds(seeds: Path, tables: Tables, workload: str) -> dict[str, int]:
    """Drops seeds that repeat an erased exchange, of the directory that import_seeds filled; returns their number by source."""
    with workbench() as connection:
        if not _attach(connection, tables, workload):
            return {}
        attach_parquet(connection, "seeds", seeds / "seeds.parquet")
        for macro in (*MACROS, "composing/seeds/exchanges_of"):
            run(connection, macro)
        run(connection, "composing/seeds/erased", user_hash_key=hash_key())
        counts = dict(run(connection, "composing/seeds/erased_by_source").fetchall())
        if counts:
            left = rows(connection, "composing/seeds/not_erased")
            write_rows(left.to_reader(), seeds / "seeds.parquet", pq.read_schema(seeds / "seeds.parquet"))
    return counts


def _attach(connection, tables: Tables, workload: str) -> bool:
    attach_files(connection, "erasures", SCHEMAS["erasures"], tables.files("erasures"), PARTITIONS["erasures"])
    return hash_erased(connection, tables, [workload])


def drop_contaminated_seeds(seeds: Path, eval_items: Path, settings: Decontamination) -> dict[str, int]:
    """Drops the seeds and returns their number by source. `seeds`: the directory that import_seeds filled."""
    items = read_eval_items(eval_items)
    if not settings.enabled or not len(items):
        return {}
    with workbench() as connection:
        attach_parquet(connection, "seeds", seeds / "seeds.parquet")
        connection.register("eval_items", items)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "composing/seeds/searched_rows")
        find_items(connection, settings)
        counts = dict(run(connection, "composing/seeds/contaminated_by_source").fetchall())
        write_rows(stream(connection, "composing/seeds/contaminated"), seeds / "contaminated_seeds.parquet")
        if counts:
            left = rows(connection, "composing/seeds/kept")
            write_rows(left.to_reader(), seeds / "seeds.parquet", pq.read_schema(seeds / "seeds.parquet"))
    return counts


OWN_IDS = {"messages", "prompt_completion", "alpaca", "sharegpt", "text", "tokens", "preferences"}
"""Formats in which a record's `id` names the example. (In logs, choices and retries share a request's id.)"""
TOKENIZERS = "tokenizers.json"
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


class SeedError(Exception):
    """A seed file cannot be read; the message names it."""


@dataclass
class SeedReport:
    """lines = rows + duplicates + bad + erased, in total and by source."""

    lines: int = 0
    rows: int = 0
    duplicates: int = 0
    bad: int = 0
    erased: int = 0
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_metrics(self) -> dict[str, Any]:
        return asdict(self)


def import_seeds(
    seeds: Mapping[str, SourceSettings | Path | str],
    output: Path,
    datasets: Mapping[str, Path] | None = None,
    erased: SeedTombstones | None = None,
) -> SeedReport:
    """Writes the usable lines of every seed; bad ones are counted and recorded. datasets: directories of the seeds that name
    one of the lake. erased: tombstones, by which records are left out. Raises SeedError for a file that is missing, unreadable,
    or has no usable line, for two examples of one file with the same id, and for a dataset without training rows."""
    sources = {
        name: seed if isinstance(seed, SeedSettings) else SeedSettings(**_as_settings(seed))
        for name, seed in sorted(seeds.items())
    }
    report = SeedReport()
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    seen: set[str] = set()
    vocabularies = {name: _vocabulary(name, seed.tokenizer) for name, seed in sources.items() if seed.tokenizer}
    for source, settings in sources.items():
        counts = {"lines": 0, "rows": 0, "duplicates": 0, "bad": 0, "erased": 0}
        named: dict[tuple[Any, ...], tuple[str, Any]] = {}
        for place, example in _examples(source, settings, (datasets or {}).get(source)):
            counts["lines"] += 1
            if erased is not None and _is_erased(example, erased):
                counts["erased"] += 1
                continue
            try:
                row = example["row"] if "row" in example else _row(example)
            except ValueError as error:
                counts["bad"] += 1
                bad.append({**place, "message": str(error)})
                continue
            _refuse_second(source, place, example, row["content_sha256"], named)
            if row["content_sha256"] in seen:
                counts["duplicates"] += 1
                continue
            seen.add(row["content_sha256"])
            counts["rows"] += 1
            synthetic = settings.synthetic or bool(row.get("synthetic"))
            own: dict[str, Any] = {"row_id": f"seed:{row['content_sha256'][:24]}", "session_id": None, "interaction_ids": []}
            good.append({**own, **place, **row, "synthetic": synthetic})
        if not counts["rows"] and not counts["duplicates"] and not counts["erased"]:
            why = f"; the first: {bad[-counts['bad']]['message']}" if counts["bad"] else ""
            raise SeedError(
                f"seeds {source}: {settings.uri or settings.dataset} holds no usable line, of {counts['lines']}{why}"
            )
        report.by_source[source] = counts
    for name in ("lines", "rows", "duplicates", "bad", "erased"):
        setattr(report, name, sum(counts[name] for counts in report.by_source.values()))
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(good, schema=SEEDS), output / "seeds.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(bad, schema=BAD_LINES), output / "bad_lines.parquet", compression="zstd")
    with_ids = {row["source"] for row in good if row.get("token_ids") is not None}
    write_json(output / TOKENIZERS, {source: digest for source, digest in vocabularies.items() if source in with_ids})
    return report


def _as_settings(seed: SourceSettings | Path | str) -> dict[str, Any]:
    return seed.model_dump() if isinstance(seed, SourceSettings) else {"uri": str(seed)}


def _is_erased(example: Mapping[str, Any], erased: SeedTombstones) -> bool:
    row = example.get("row", example)
    ids = [*(row.get("interaction_ids") or ()), row.get("request_id"), row.get("alias_id")]
    return erased.names(row.get("session_id"), row.get("user_hash"), ids)


def _vocabulary(source: str, tokenizer: str) -> str:
    digest = vocabulary_digest(Path(tokenizer))
    if not digest:
        raise SeedError(f"seeds {source}: there is no tokenizer in {tokenizer}; name a directory with tokenizer.json")
    return digest


def _refuse_second(
    source: str,
    place: Mapping[str, Any],
    example: Mapping[str, Any],
    content: str,
    named: dict[tuple[Any, ...], tuple[str, Any]],
) -> None:
    """Raises SeedError if an earlier example of the file has the same id and other content."""
    if example.get("request_id") is None or example.get("source_format") not in OWN_IDS:
        return
    key = (place["source_uri"], example["request_id"])
    first, row = named.setdefault(key, (content, place["source_row"]))
    if first != content:
        raise SeedError(
            f"seeds {source}: records {row} and {place['source_row']} of {place['source_uri']} have the same id "
            "and different content; give each example an id of its own, or none"
        )


def _examples(source: str, settings: SeedSettings, dataset: Path | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The position and content of each example, in file and line order; a quarantined one has `problem`."""
    if settings.dataset is not None:
        yield from _rows_of_dataset(source, settings.dataset, dataset)
        return
    try:
        entries = [
            LedgerEntry(source, item.uri, item.etag, item.bytes, item.modified) for item in list_objects(source, settings)
        ]
    except SourceError as error:
        raise SeedError(f"there is no seed file {settings.uri}: {error}") from error
    turns = [name for name, form in FORMATS.items() if form.turns]
    with open_staging("seeds", {source: settings}) as stage:
        for batch in stage.batches(entries):
            if batch.failed:
                raise SeedError(f"seed file {batch.failed[0].uri} cannot be read to its end")
            run(stage.connection, "curating/macros/labels_of")
            for example in rows(stage.connection, "composing/seeds/examples", turns=turns).to_pylist():
                yield {name: example.pop(name) for name in ("source", "source_uri", "source_row")}, example


def _rows_of_dataset(source: str, name: str, dataset: Path | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if dataset is None or not (dataset / "train.parquet").exists():
        raise SeedError(f"seeds {source}: {name} has no training rows of conversations; name an sft_dataset or teacher_answers")
    with workbench() as connection:
        attach_parquet(connection, "dataset_rows", dataset / "train.parquet")
        held = set(connection.table("dataset_rows").columns)
        if missing := {"row_id", "messages", "content_sha256", "interaction_ids"} - held:
            raise SeedError(f"seeds {source}: rows of {name} have no column {', '.join(sorted(missing))}; name an sft_dataset")
        connection.execute(
            sql_text("composing/seeds/rows_of_dataset").format(synthetic="synthetic" if "synthetic" in held else "false")
        )
        for at, row in enumerate(rows(connection, "composing/seeds/dataset_examples").to_pylist(), start=1):
            yield {"source": source, "source_uri": f"dataset:{name}", "source_row": at}, {"row": row}


def _row(example: dict[str, Any]) -> dict[str, Any]:
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


def _conversation(turns: list[Any]) -> list[dict[str, Any]]:
    messages = []
    for at, message in enumerate(turns):
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
