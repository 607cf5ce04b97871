"""The lake's Delta tables: their columns, and how they are committed (delta-rs).

    tables = Tables(lake)
    tables.replace("interactions", rows, workload="math-tutor", dt=[date(2026, 6, 1)])   # that partition, atomically
    tables.files("interactions")                                                       # for DuckDB's read_parquet

A commit replaces whole partitions or appends; readers see one version or the next. Delta predicates cannot take bound
parameters: they are built by `sql_literal`, the project's one quoting function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake

from resources.lake.lake import LakeLayout
from resources.lake.opened_tables import opened

_TEXT = pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_IDS = pa.list_(pa.int32())


def _columns(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(list(fields.items()))


SCHEMAS: dict[str, pa.Schema] = {
    # The ledger of log objects. state: found, read, failed; problem: why it failed; read_as: the source's settings when it was
    # read; partners: objects with the other side of its request-response pairs; content_sha256: of its bytes as read, which
    # identifies a moved object; unread_keys: JSON of [path, field that would read it, records].
    "objects": _columns(
        workload=_TEXT,
        source=_TEXT,
        uri=_TEXT,
        etag=_TEXT,
        bytes=pa.int64(),
        modified=_TIME,
        rows=pa.int64(),
        days=pa.list_(pa.date32()),
        state=_TEXT,
        format=_TEXT,
        problem=_TEXT,
        read_as=_TEXT,
        partners=pa.list_(_TEXT),
        content_sha256=_TEXT,
        unread_keys=_TEXT,
    ),
    # One request with one choice. messages, tools, params, completion are JSON text in the OpenAI shape. alias_id: a second
    # id of the request that feedback may name (a gateway's own, a span's). workload_name: what the record itself calls its
    # workload. emptied: null until retention empties the row of what was said (retention.py), then md5 of how it was served.
    # release: of millrace, that gave the answer. drafts and what follows: of this request, where its server reports them.
    "interactions": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        request_id=_TEXT,
        alias_id=_TEXT,
        trace_id=_TEXT,
        choice_index=pa.int32(),
        ts=_TIME,
        source=_TEXT,
        source_format=_TEXT,
        source_uri=_TEXT,
        source_row=pa.int64(),
        client=_TEXT,
        session_id=_TEXT,
        user_hash=_TEXT,
        model=_TEXT,
        provider=_TEXT,
        served_model_digest=_TEXT,
        messages=_TEXT,
        tools=_TEXT,
        params=_TEXT,
        completion=_TEXT,
        reasoning=_TEXT,
        prompt_token_ids=_IDS,
        completion_token_ids=_IDS,
        finish_reason=_TEXT,
        error=_TEXT,
        cache_hit=pa.bool_(),
        prompt_tokens=pa.int64(),
        completion_tokens=pa.int64(),
        cached_tokens=pa.int64(),
        reasoning_tokens=pa.int64(),
        latency_ms=pa.float64(),
        ttft_ms=pa.float64(),
        cost=pa.float64(),
        status=_TEXT,
        content_sha256=_TEXT,
        workload_name=_TEXT,
        emptied=_TEXT,
        release=_TEXT,
        queue_ms=pa.float64(),
        drafts=pa.int64(),
        draft_tokens=pa.int64(),
        accepted_tokens=pa.int64(),
    ),
    # value: a number (thumbs: 1 or -1); label: its word. interaction_id: the interaction that it is about; tie: the id that
    # tied it (interaction, request, gateway, trace, session), or why it is not tied: several, unknown, elsewhere (in another
    # workload). given_id: the interaction id in the record itself. Where tie is null, the record was not tied yet, and
    # interaction_id is the record's own.
    "feedback": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        request_id=_TEXT,
        trace_id=_TEXT,
        session_id=_TEXT,
        name=_TEXT,
        value=pa.float64(),
        label=_TEXT,
        source=_TEXT,
        comment=_TEXT,
        ts=_TIME,
        source_uri=_TEXT,
        source_row=pa.int64(),
        given_id=_TEXT,
        tie=_TEXT,
    ),
    # A line that could not be read as a row. raw: its first bytes, to fix the producer.
    "quarantine": _columns(
        workload=_TEXT,
        source=_TEXT,
        source_uri=_TEXT,
        source_row=pa.int64(),
        error_code=_TEXT,
        message=_TEXT,
        raw=pa.binary(),
    ),
    # Interactions after cleaning, by day: JSON with PII redacted; reasoning: the answer's; request: what the request gave the
    # chat template besides messages and tools; status: the rule that drops the row, or ok; quality: the measures of the rules;
    # signature: MinHash (a stamp of its settings, one hash per band); cleaned_with: digest of the settings and code that made
    # the row.
    "cleaned_interactions": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        content_sha256=_TEXT,
        session_id=_TEXT,
        ts=_TIME,
        source=_TEXT,
        messages=_TEXT,
        tools=_TEXT,
        completion=_TEXT,
        status=_TEXT,
        feedback=pa.float64(),
        prompt_characters=pa.int64(),
        completion_characters=pa.int64(),
        pii=pa.map_(_TEXT, pa.int32()),
        language=_TEXT,
        quality=pa.map_(_TEXT, pa.float64()),
        prompt_shape=_TEXT,
        normalised_sha256=_TEXT,
        signature=pa.list_(pa.int32()),
        cleaned_with=_TEXT,
        reasoning=_TEXT,
        request=_TEXT,
    ),
    # Why each row was kept or dropped. stage: ingest and clean (by day), curate and dataset (one pass per `version`).
    "decisions": _columns(
        workload=_TEXT,
        stage=_TEXT,
        version=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        rule=_TEXT,
        kept=pa.bool_(),
        detail=_TEXT,
        kept_id=_TEXT,
    ),
    # A judge model's scores of cleaned rows. name: quality or difficulty; score: 1 to 10, or null where there is none (answer
    # says why). A row is judged once for each model and prompt.
    "judgements": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        content_sha256=_TEXT,
        name=_TEXT,
        score=pa.float64(),
        model=_TEXT,
        prompt_sha256=_TEXT,
        prompt=_TEXT,
        answer=_TEXT,
        ts=_TIME,
    ),
    # Evaluation items found in each day's rows. searched: digest of what was searched for; content: digest of the day's texts.
    # A row without interaction_id says that its day was searched. A cache: what it lacks is searched again. share: of the
    # item's own words, of which there are `own`; words: numbers of those found, where a stretch is missing (it may be the
    # traffic's own text: all days decide); message: digest of the message.
    "contamination": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        searched=_TEXT,
        content=_TEXT,
        interaction_id=_TEXT,
        suite=_TEXT,
        item_id=_TEXT,
        part=_TEXT,
        share=pa.float64(),
        own=pa.int64(),
        words=pa.list_(pa.int64()),
        message=_TEXT,
    ),
    # Ids of interactions whose rows retention removed: an erasure finds rows of datasets by them.
    "retired": _columns(
        workload=_TEXT,
        dt=pa.date32(),
        interaction_id=_TEXT,
        request_id=_TEXT,
        alias_id=_TEXT,
        trace_id=_TEXT,
        session_id=_TEXT,
        user_hash=_TEXT,
        source=_TEXT,
        source_uri=_TEXT,
        source_row=pa.int64(),
        ts=_TIME,
        content_sha256=_TEXT,
        removed_at=_TIME,
    ),
    # What a server counted in a window (resources/monitoring/metrics/). endpoint: its address; seconds: measured between its
    # readings; restarts: how often it was started again within; finished: requests by the reason for which they ended. Gauges
    # are those at the window's end. Null: the server does not report it.
    "serving_metrics": _columns(
        workload=_TEXT,
        endpoint=_TEXT,
        release=_TEXT,
        window_start=_TIME,
        window_end=_TIME,
        drafts=pa.int64(),
        draft_tokens=pa.int64(),
        accepted_tokens=pa.int64(),
        accepted_per_position=pa.list_(pa.int64()),
        tokens_per_second=pa.float64(),
        latency_ms=pa.map_(_TEXT, pa.float64()),
        server=_TEXT,
        seconds=pa.float64(),
        restarts=pa.int32(),
        prompt_tokens=pa.int64(),
        generation_tokens=pa.int64(),
        requests=pa.int64(),
        finished=pa.map_(_TEXT, pa.int64()),
        errors=pa.int64(),
        refused=pa.int64(),
        preemptions=pa.int64(),
        requests_running=pa.float64(),
        requests_waiting=pa.float64(),
    ),
    # Traffic of a window, compared with the reference window of a release: one row per window, test and release. dt: the last
    # day of the window; rows, files: what it had when it was compared; problem: why it was not compared.
    "drift": _columns(
        workload=_TEXT,
        release=_TEXT,
        dt=pa.date32(),
        window_days=pa.int32(),
        test=_TEXT,
        value=pa.float64(),
        bound=pa.float64(),
        p=pa.float64(),
        level=pa.float64(),
        alarm=pa.bool_(),
        dispersion=pa.float64(),
        sessions=pa.int64(),
        reference_sessions=pa.int64(),
        reference_start=pa.date32(),
        reference_end=pa.date32(),
        rows=pa.int64(),
        problem=_TEXT,
        settings=_TEXT,
        ts=_TIME,
        files=_TEXT,
    ),
    # What was decided about retraining, and what came of it: one row per decision. evidence, options: JSON text. outcome:
    # resources/deciding/decisions.py. cost_s, money, gain: measured once the run has ended.
    "retraining_decisions": _columns(
        workload=_TEXT,
        decision_id=_TEXT,
        ts=_TIME,
        cause=_TEXT,
        cause_text=_TEXT,
        evidence=_TEXT,
        options=_TEXT,
        action=_TEXT,
        why=_TEXT,
        dry_run=pa.bool_(),
        run_id=_TEXT,
        outcome=_TEXT,
        cost_s=pa.float64(),
        money=pa.float64(),
        gain=pa.float64(),
        settled_ts=_TIME,
    ),
    # Tombstones: every ingest drops records that match one (resources/reading/erasures.py). erasure: the run of
    # `millrace forget` that wrote it; key_check: of the key that sha256 was made with.
    "erasures": _columns(
        workload=_TEXT,
        kind=_TEXT,
        sha256=_TEXT,
        ts=_TIME,
        erasure=_TEXT,
        key_check=_TEXT,
        reason=_TEXT,
        who=_TEXT,
    ),
}

PARTITIONS: dict[str, list[str]] = {
    "objects": ["workload"],
    "interactions": ["workload", "dt"],
    "feedback": ["workload", "dt"],
    "quarantine": ["workload"],
    "cleaned_interactions": ["workload", "dt"],
    "decisions": ["workload", "stage"],
    "judgements": ["workload", "dt"],
    "contamination": ["workload", "dt"],
    "retired": ["workload", "dt"],
    "serving_metrics": ["workload"],
    "drift": ["workload"],
    "retraining_decisions": ["workload"],
    "erasures": ["workload"],
}


def sql_literal(value: str | date | datetime | int | bool) -> str:
    """A value as an SQL literal, quotes doubled. Only for statements that cannot take bound parameters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = value.isoformat() if isinstance(value, date | datetime) else value
    if "\0" in text:
        raise ValueError("a NUL character cannot be part of an SQL literal")
    return "'" + text.replace("'", "''") + "'"


Rows: TypeAlias = pa.Table | pa.RecordBatchReader
"""A reader's rows are written as they come: they need not fit in memory."""

_WRITTEN = WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=1 << 16)

MANY_FILES = 32
"""Each run with rows for a partition adds a file to it; more files than this are merged."""


class Tables:
    """The Delta tables of one lake."""

    def __init__(self, lake: LakeLayout):
        self.lake = lake

    def open(self, name: str) -> DeltaTable | None:
        """The table at its newest version, or None if nothing was ever committed to it. Only its log is sure to be here."""
        self.lake.mirror.pull_log(self.lake.table(name))
        return opened(self.lake.table(name))

    def files(self, name: str, **where: tuple[str, Any]) -> list[str]:
        """Absolute paths of the Parquet files of the newest version.

        where: conditions on partitions, such as workload=("=", "math-tutor"), dt=("in", ["2026-06-01"]).
        """
        table = self.open(name)
        if table is None:
            return []
        filters = [(column, operator, value) for column, (operator, value) in where.items()] or None
        found = sorted(table.file_uris(file_pruning_predicate=filters))
        self.lake.mirror.fetch_files(Path(file) for file in found)
        return found

    def rows_by_day(self, name: str, workload: str) -> dict[date, int]:
        """Number of rows of each of a workload's days, from the commit log alone."""
        table = self.open(name)
        if table is None:
            return {}
        counted: dict[date, int] = {}
        for part in _parts(table, "partition.workload", "partition.dt", "num_records"):
            if part["partition.workload"] == workload:
                day = part["partition.dt"]
                counted[day] = counted.get(day, 0) + part["num_records"]
        return counted

    def files_by_day(self, name: str, workload: str) -> dict[date, list[str]]:
        """The Parquet files of each of a workload's days, as the commit log names them."""
        table = self.open(name)
        found: dict[date, list[str]] = {}
        for part in _parts(table, "partition.workload", "partition.dt", "path") if table is not None else ():
            if part["partition.workload"] == workload:
                found.setdefault(part["partition.dt"], []).append(part["path"])
        return found

    def written_at(self, name: str, workload: str) -> datetime | None:
        """When the newest of a workload's files was written, from the commit log alone; None if there is none."""
        table = self.open(name)
        parts = _parts(table, "partition.workload", "modification_time") if table is not None else []
        written = [part["modification_time"] for part in parts if part["partition.workload"] == workload]
        return datetime.fromtimestamp(max(written) / 1_000, UTC) if written else None

    def holds(self, name: str, workload: str, column: str) -> bool:
        """Whether a workload has any value in a column, from the commit log alone; True if the log has no statistics."""
        table = self.open(name)
        if table is None:
            return False
        parts = _parts(table, "partition.workload", "num_records", f"null_count.{column}")
        return any(
            part["num_records"] is None
            or part.get(f"null_count.{column}") is None
            or part[f"null_count.{column}"] < part["num_records"]
            for part in parts
            if part["partition.workload"] == workload
        )

    def compact(self, name: str, workload: str) -> int:
        """Merges the files of partitions that have more than MANY_FILES; returns the number of these partitions.

        Rows do not change; old files stay for readers that have them open.
        """
        table = self.open(name)
        if table is None:
            return 0
        counted: Counter[tuple[str, ...]] = Counter()
        for part in _parts(table, *(f"partition.{column}" for column in PARTITIONS[name])):
            if part["partition.workload"] == workload:
                counted[tuple(_as_text(part[f"partition.{column}"]) for column in PARTITIONS[name])] += 1
        crowded = [values for values, files in counted.items() if files > MANY_FILES]
        for values in crowded:
            chosen = [(column, "=", value) for column, value in zip(PARTITIONS[name], values, strict=True)]
            with self.lake.mirror.committing(self.lake.table(name)) as (place, settings):
                options = settings.pop("storage_options", None)
                there = table if options is None else DeltaTable(place, storage_options=options)
                there.optimize.compact(partition_filters=chosen, writer_properties=_WRITTEN, max_concurrent_tasks=1, **settings)
        return len(crowded)

    def append(self, name: str, rows: Rows) -> None:
        """Adds rows in one commit; without rows there is no commit."""
        self._write(name, rows, mode="append")

    def replace(self, name: str, rows: Rows, **where: Sequence[Any] | Any) -> None:
        """Replaces, in one commit, the rows that match `where` (column=value, or column=[values]) by `rows`.

        Every new row must match `where` too: delta-rs refuses the commit otherwise.
        """
        clauses = []
        for column, value in where.items():
            values = value if isinstance(value, list | tuple | set) else [value]
            if not values:
                return
            clauses.append(f"{column} in ({', '.join(sql_literal(item) for item in values)})")
        self._write(name, rows, mode="overwrite", predicate=" and ".join(clauses))

    def _write(self, name: str, rows: Rows, mode: str, predicate: str | None = None) -> None:
        schema = SCHEMAS[name]
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        batches = (part for batch in batches for part in _as_written(batch, schema))
        first = next(batches, None)
        if mode == "append" and first is None:
            return
        if self.open(name) is None:
            mode, predicate = "append", None
        with self.lake.mirror.committing(self.lake.table(name)) as (place, settings):
            write_deltalake(
                place,
                pa.RecordBatchReader.from_batches(schema, chain([first] if first else [], batches)),
                mode=mode,
                predicate=predicate,
                partition_by=PARTITIONS[name],
                writer_properties=_WRITTEN,
                schema_mode="merge",  # a table that lacks a newer column gets it with its next commit
                **settings,
            )


def _parts(table: DeltaTable, *columns: str) -> list[dict[str, Any]]:
    """The commit log's entry for each file, limited to these columns, because it may have statistics of many."""
    listed = pa.table(table.get_add_actions(flatten=True))
    return listed.select([column for column in columns if column in listed.column_names]).to_pylist()


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else value


def _as_written(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    return pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
