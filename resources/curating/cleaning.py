"""Cleans interactions by day, each independent of the others: replaces personal data, applies the rules on single rows in the
order of sql/curating/rules.sql, measures, computes MinHash signatures. `cleaned_with` holds the digest of settings and code
that made a row; `stale_days` compares it with today's. Rows whose text retention emptied keep their cleaned row."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.chat_apis import WHOLE
from resources.curating.curation import CurationSettings, FeedbackRules
from resources.curating.duplicates.near_duplicates import signatures
from resources.curating.fresh_days import FreshDays
from resources.curating.languages import detect
from resources.curating.personal_data.pii_scan import might_hold
from resources.curating.personal_data.placeholders import Redactor, finder
from resources.curating.personal_data.presidio import model_name
from resources.curating.quality import measures
from resources.curating.request_topics import LEAST_PEOPLE, attach_topics, choose_topics, digest_of, keep_topics, stored_topics
from resources.curating.row_feedback import attach_row_feedback
from resources.curating.shingles import threads
from resources.digests import source_digest
from resources.lake import PARTITIONS, SCHEMAS, Tables, attach_files, attach_slice, rows, run, slice_files, stream, workbench

BYTES_AT_A_TIME = 256 << 20
"""Bytes of text cleaned at a time, over all workers: several small days together, a larger day in parts of whole sessions."""

LEAST_BYTES_OF_A_PART = 4 << 20
"""Smaller parts cost more to begin than a second core saves."""

ROWS_OF_TOPICS, BYTES_OF_TOPICS = 100_000, 32 << 20
"""The newest rows, and of their sessions about so much text, that topics of requests are chosen from."""

MOST_WORKERS = 4
"""Parts cleaned at the same time, on as many cores. Redaction is Python and runs in one part at a time."""


MACROS = tuple(
    f"curating/macros/{name}"
    for name in (
        "one_line", "one_spacing", "grams_of", "without_phrases", "words_in", "message_text", "message_identity",
        "conversation_of", "conversation_texts", "conversation_with_identities", "new_messages", "beginning", "shape_of",
        "request_of", "refused_in_words",
)
)  # fmt: skip

_REDACTIONS = pa.schema(
    [
        ("interaction_id", pa.string()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("completion", pa.string()),
        ("replaced", pa.string()),
        ("reasoning", pa.string()),
        ("request", pa.string()),
        ("pii", pa.map_(pa.string(), pa.int32())),
    ]
)

_SEARCHED = ("messages", "tools", "completion", "replaced", "reasoning", "request")
"""Columns in which personal data is replaced, in the order in which placeholders are numbered."""


@dataclass
class CleanReport:
    """read = kept + the sum of dropped, for every day and in all."""

    read: int = 0
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    pii: dict[str, int] = field(default_factory=dict)
    """Values replaced by placeholders, by kind."""
    days: dict[date, dict[str, int]] = field(default_factory=dict)
    """For each day: rows, and how many of them each rule took or `kept`."""

    def as_metrics(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.rows, "dropped": self.dropped, "pii": self.pii}

    def add(self, part: _Part) -> None:
        for day, rule, count in part.rules:
            counts = self.days.setdefault(day, {"rows": 0})
            counts["rows"] += count
            counts[rule] = counts.get(rule, 0) + count
            self.read += count
            if rule == "kept":
                self.rows += count
            else:
                self.dropped[rule] = self.dropped.get(rule, 0) + count
        for kind, values in part.pii:
            self.pii[kind] = self.pii.get(kind, 0) + values


@dataclass(frozen=True)
class _Part:
    facts: list[pa.Table]
    decisions: list[pa.Table]
    rules: list[tuple[date, str, int]]
    """Number of rows by day and rule."""
    pii: list[tuple[str, int]]


def clean(tables: Tables, workload: str, days: Sequence[date], settings: CurationSettings) -> CleanReport:
    """Replaces the cleaned rows of `days` and their decisions. Raises RuntimeError where a row has no decision."""
    report = CleanReport(days={day: {"rows": 0} for day in sorted(set(days))})
    topics = _topics(tables, workload, settings)
    for group, parts in _cleaned_groups(tables, workload, sorted(set(days)), settings, topics):
        _commit(tables, workload, group, parts, report)
    if report.read != report.rows + sum(report.dropped.values()):
        raise RuntimeError(f"clean {workload}: {report.read} rows read, but {report.rows} kept and {report.dropped}")
    return report


def cleaned_with(settings: CurationSettings, topics: pa.Table | None = None) -> str:
    """Digest of everything that cleaning depends on: settings, source code, the model that finds personal data, and topics."""
    asked = settings.model_dump(
        mode="json",
        include={
            "pii": True, "pii_engine": True, "status": True, "tools": True, "language": True, "repetition": True,
            "length": True, "near_duplicates": {"ngram", "bands", "rows"}, "feedback": {"keep_thumbs_up", "least", "most"},
        },
    )  # fmt: skip
    if settings.pii_engine == "presidio":
        asked["pii_model"] = model_name()
    code = source_digest("resources/curating/cleaning.py")
    return hashlib.sha256(f"{json.dumps(asked, sort_keys=True)}{code}{digest_of(topics)}".encode()).hexdigest()[:16]


def stale_days(tables: Tables, workload: str, settings: CurationSettings | None = None) -> list[date]:
    """Days to clean: never cleaned, or with interactions that were added, changed or removed since. With `settings`, also days
    that were cleaned with other settings or code, and days whose feedback changed since."""
    digest = cleaned_with(settings, _topics(tables, workload, settings)) if settings else None
    fresh = FreshDays(tables, workload, digest)
    stale = _stale_rows(tables, workload, fresh.unknown, digest)
    stale_opinions = set() if settings is None or fresh.is_heard else _stale_opinions(tables, workload, settings.feedback)
    if settings is not None and not fresh.is_heard:
        stale_opinions |= _stale_chains(tables, workload)
    fresh.keep(stale, opinions_hold=settings is not None and not stale_opinions)
    return sorted(stale | stale_opinions)


def _stale_rows(tables: Tables, workload: str, days: Sequence[date], digest: str | None) -> set[date]:
    """The days whose cleaned rows do not match their interactions, or were made with another digest."""
    if not days:
        return set()
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload, days)
        return {day for (day,) in run(connection, "curating/clean/stale_days", cleaned_with=digest).fetchall()}


def _stale_opinions(tables: Tables, workload: str, rules: FeedbackRules) -> set[date]:
    """Days with rows whose feedback or correction changed. An id in feedback may name a row of any day."""
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions", "feedback"):
            attach_slice(connection, tables, name, workload)
        run(connection, "curating/clean/cleaned_with_ids")
        attach_row_feedback(connection, rules)
        run(connection, "curating/clean/corrections")
        return {
            day
            for what in ("feedback", "corrections")
            for (day,) in run(connection, f"curating/clean/days_with_changed_{what}").fetchall()
        }


def _stale_chains(tables: Tables, workload: str) -> set[date]:
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload)
        _attach_chains(connection, slice_files(tables, "interactions", workload), None)
        return {day for (day,) in run(connection, "curating/clean/days_with_changed_chains").fetchall()}


def _attach_chains(connection: duckdb.DuckDBPyConnection, files: list[str], days: list[date] | None) -> None:
    """The table `chains`. All interactions are read only if some that are attached go on from another one."""
    (some,) = run(connection, "curating/clean/has_chains").fetchone()
    attach_files(connection, "responses", SCHEMAS["interactions"], files if some else [], PARTITIONS["interactions"])
    run(connection, "curating/clean/chains", days=days)


def _cleaned_groups(
    tables: Tables, workload: str, days: list[date], settings: CurationSettings, topics: pa.Table | None
) -> Iterator[tuple[list[date], Iterator[_Part]]]:
    workers = min(threads(), MOST_WORKERS)
    groups = list(_groups(tables, workload, days, workers))
    jobs = iter([(group, part, parts) for group, parts in groups for part in range(parts)])
    running: deque[Future[_Part]] = deque()
    of_all_days = {
        "responses": slice_files(tables, "interactions", workload),
        "feedback": slice_files(tables, "feedback", workload),
        "decisions": tables.files("decisions", workload=("=", workload), stage=("=", "clean")),
    }
    with ThreadPoolExecutor(workers) as pool:

        def start_next() -> None:
            if (job := next(jobs, None)) is not None:
                group, part, parts = job
                files = {name: slice_files(tables, name, workload, group) for name in ("interactions", "cleaned_interactions")}
                running.append(pool.submit(_clean_part, files | of_all_days, group, part, parts, settings, topics))

        def results(parts: int) -> Iterator[_Part]:
            for _ in range(parts):
                cleaned = running.popleft().result()
                start_next()
                yield cleaned

        try:
            for _ in range(workers):
                start_next()
            for group, parts in groups:
                yield group, results(parts)
        finally:
            for future in running:
                future.cancel()


def _groups(tables: Tables, workload: str, days: list[date], workers: int) -> Iterator[tuple[list[date], int]]:
    """Groups of days to clean together, each with its number of parts, so many that every worker has one."""
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload, days)
        sizes = dict(run(connection, "curating/clean/bytes_by_day").fetchall())
    share = max(LEAST_BYTES_OF_A_PART, -(-sum(sizes.values()) // workers))
    most = min(share, BYTES_AT_A_TIME // workers)
    group: list[date] = []
    size = 0
    for day in days:
        if group and size + sizes.get(day, 0) > most:
            yield group, -(-size // most) or 1
            group, size = [], 0
        group.append(day)
        size += sizes.get(day, 0)
    if group:
        yield group, -(-size // most) or 1


def _commit(tables: Tables, workload: str, days: list[date], parts: Iterator[_Part], report: CleanReport) -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-clean-") as folder:
        with _Spool("cleaned_interactions", folder) as facts, _Spool("decisions", folder) as decisions:
            for part in parts:
                for table in part.facts:
                    facts.add(table)
                for table in part.decisions:
                    decisions.add(table)
                report.add(part)
        tables.replace("cleaned_interactions", facts.read(), workload=workload, dt=days)
        tables.replace("decisions", decisions.read(), workload=workload, stage="clean", dt=days)


def _clean_part(
    files: Mapping[str, list[str]], days: list[date], part: int, parts: int, settings: CurationSettings, topics: pa.Table | None
) -> _Part:
    with workbench() as connection:
        connection.execute(f"set threads = {max(1, threads() // MOST_WORKERS)}")  # parts share the cores
        _attach(connection, files, ("interactions", "feedback"))
        _attach_chains(connection, files["responses"], days)
        facts = [_facts(connection, part, parts, settings, topics)]
        decisions = [rows(connection, "curating/clean/decisions")]
        rules = run(connection, "curating/clean/counts").fetchall()
        pii = run(connection, "curating/clean/pii_counts").fetchall()
        if run(connection, "curating/clean/has_emptied").fetchall():
            # the cleaned rows of interactions whose text retention removed stay as they are: rows of their day arrived late
            _attach(connection, files, ("cleaned_interactions", "decisions"))
            facts.append(rows(connection, "curating/clean/kept_facts", part=part, parts=parts))
            decisions.append(rows(connection, "curating/clean/kept_decisions", part=part, parts=parts))
    return _Part(facts, decisions, rules, pii)


def _attach(connection: duckdb.DuckDBPyConnection, files: Mapping[str, list[str]], names: Sequence[str]) -> None:
    for name in names:
        attach_files(connection, name, SCHEMAS[name], files[name], PARTITIONS[name])


def _topics(tables: Tables, workload: str, settings: CurationSettings) -> pa.Table | None:
    """The kept topics of requests, or those of the newest traffic, which are then kept; None while too few people asked."""
    if (stored := stored_topics(tables.lake, workload)) is not None:
        return stored
    days: list[date] = []
    rows_taken = 0
    for day, count in sorted(tables.rows_by_day("interactions", workload).items(), reverse=True):
        if rows_taken < ROWS_OF_TOPICS:
            days.append(day)
            rows_taken += count
    if rows_taken < LEAST_PEOPLE:
        return None
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload, days)
        attach_slice(connection, tables, "feedback", workload)
        [people] = run(connection, "curating/shapes/people").fetchone()
        if people < LEAST_PEOPLE:
            return None
        size = sum(of_day for _, of_day in run(connection, "curating/clean/bytes_by_day").fetchall())
        _attach_chains(connection, slice_files(tables, "interactions", workload), days)
        parts = min(-(-size // BYTES_OF_TOPICS), people // (2 * LEAST_PEOPLE))  # people with long texts are enough, too
        _texts(connection, 0, max(1, parts), settings)
        chosen = choose_topics(connection)
    return keep_topics(tables.lake, workload, chosen) if len(chosen) else None


def _texts(connection: duckdb.DuckDBPyConnection, part: int, parts: int, settings: CurationSettings) -> None:
    for macro in MACROS:
        run(connection, macro)
    run(connection, "curating/clean/corrections")
    run(connection, "curating/clean/arrived", part=part, parts=parts)
    run(connection, "curating/clean/arrived_as_conversations")
    connection.register("redactions", _redactions(connection, settings))
    run(connection, "curating/clean/cleaned")
    run(connection, "curating/clean/cleaned_as_conversations")
    run(connection, "curating/clean/texts")
    run(connection, "curating/shapes/plain_words")
    run(connection, "curating/shapes/asked_words")


def _facts(
    connection: duckdb.DuckDBPyConnection, part: int, parts: int, settings: CurationSettings, topics: pa.Table | None
) -> pa.Table:
    """The cleaned rows of one part of the sessions; they stay as table `facts`, their broken rules as `broken_rules`."""
    _texts(connection, part, parts, settings)
    attach_topics(connection, topics)
    attach_row_feedback(connection, settings.feedback)
    connection.register("measured", _measured(connection, settings))
    status = settings.status.model_dump()
    in_words = status.pop("drop_refused_in_words")
    run(connection, "curating/rules/status", whole=WHOLE, **status)
    run(connection, "curating/rules/tools", **settings.tools.model_dump())
    run(connection, "curating/rules/language", allow=settings.language.allow)
    run(connection, "curating/rules/repetition", **settings.repetition.model_dump())
    run(connection, "curating/rules/length", **settings.length.model_dump())
    run(connection, "curating/rules/refusal", drop_refused_in_words=in_words)
    run(connection, "curating/clean/broken_rules", keep_thumbs_up=settings.feedback.keep_thumbs_up)
    facts = rows(connection, "curating/clean/facts", cleaned_with=cleaned_with(settings, topics))
    connection.register("facts", facts)
    return facts


def _redactions(connection: duckdb.DuckDBPyConnection, settings: CurationSettings) -> pa.Table:
    if settings.pii != "redact":
        return _REDACTIONS.empty_table()
    columns = rows(connection, "curating/clean/pii_columns")
    suspects = {name: np.ones(len(columns), dtype=bool) for name in _SEARCHED}
    if settings.pii_engine == "builtin":
        suspects = {name: might_hold(columns[name]) for name in _SEARCHED}
    suspected = pa.table(
        {"interaction_id": columns["interaction_id"], **{f"searched_{name}": pa.array(suspects[name]) for name in _SEARCHED}}
    )
    connection.register("suspects", suspected.filter(pa.array(np.any(list(suspects.values()), axis=0))))
    del columns
    find = finder(settings.pii_engine)
    changed = []
    each = (row for batch in stream(connection, "curating/clean/pii_candidates") for row in batch.to_pylist())
    for _, session in groupby(each, key=lambda row: (row["session_id"], row["dt"])):
        redactor = Redactor(find)
        for row in session:
            redactor.counts.clear()
            new = {
                column: redactor.redact_json(row[column])
                if row[f"searched_{column}"] and row[column] is not None
                else row[column]
                for column in _SEARCHED
            }
            if redactor.counts:
                changed.append({"interaction_id": row["interaction_id"], "pii": list(redactor.counts.items()), **new})
    return pa.Table.from_pylist(changed, schema=_REDACTIONS)


def _measured(connection: duckdb.DuckDBPyConnection, settings: CurationSettings) -> pa.Table:
    texts = rows(connection, "curating/clean/measured_texts")
    repetition = measures(texts["answer_text"], least_repeats=settings.repetition.repeats)
    if settings.language.detect:
        language, confidence = detect(texts["answer_text"], settings.language.min_confidence)
    else:
        language, confidence = pa.nulls(len(texts), pa.string()), np.zeros(len(texts))
    return (
        repetition.append_column("interaction_id", texts["interaction_id"])
        .append_column("language", language)
        .append_column("language_confidence", pa.array(confidence))
        .append_column("signature", signatures(texts["new_turn"], texts["answer"], settings.near_duplicates))
    )


class _Spool:
    """Rows of one commit, which need not fit in memory: parts after the first are kept in a Parquet file."""

    def __init__(self, name: str, folder: str):
        self._schema, self._path = SCHEMAS[name], Path(folder) / f"{name}.parquet"
        self._first: pa.Table | None = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer:
            self._writer.close()

    def add(self, part: pa.Table) -> None:
        part = part.select(self._schema.names).cast(self._schema)
        if self._first is None and self._writer is None:
            self._first = part
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd", compression_level=1)
            self._writer.write_table(self._first)
            self._first = None
        self._writer.write_table(part)

    def read(self) -> pa.Table | pa.RecordBatchReader:
        if self._first is not None:
            return self._first
        file = pq.ParquetFile(self._path)
        return pa.RecordBatchReader.from_batches(self._schema, file.iter_batches(10_000))
