"""Builds the supervised dataset: curated conversations, sampled with seeds by weight, split by session.

    report = build_sft_dataset(curated / "curated.parquet", seeds / "seeds.parquet", output, DatasetSettings())

Writes train.parquet, validation.parquet and test.parquet into `output`, each with

    row_id           the interaction's id, or the seed's
    origin           'interaction' or 'seed'; seeds are for training only
    source, session_id, workload, ts, prompt_shape, content_sha256
    messages         JSON text: OpenAI messages, the last one the answer; assistant messages have `weight` 0 or 1
    tools            JSON text, or null
    request          JSON text: what the request gave the chat template besides messages and tools (chat_template_kwargs,
                     documents, reasoning_effort, response_format); or null
    text             plain text to learn, every token of it; or null. The messages of such a row are []
    token_ids        with labels (-100: not learnt): pre-tokenized text to learn; or null. Its messages are [] too
    interaction_ids  every interaction whose answer the row trains on
    quality, difficulty   the judge's scores of the last answer, 1 to 10, if any

A chat client repeats the conversation with every turn. If a later row of a session contains an earlier one completely, only
the longest row is used: its assistant messages have weight 1 if curation kept their own interaction, else 0 (an answer with a
thumbs-down stays as context). The split is drawn by the hash of the session's split group, never by row.
rendering.json says how answers become tokens (model_ops.rendering.settings).

If a source has more rows than its quota, each prompt shape gets a quota by `balance` (its size to the power 1, 1/2 or 0), so
that rare kinds of requests are represented; within a shape, rows are drawn by hash.

`report.decisions` has the decision on every curated row (rows of the table `decisions`, stage "dataset"); with `tables`, they
are also committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from model_ops.rendering.settings import RenderingSettings
from resources.composing.seeds import SEEDS
from resources.curating.clean import MACROS
from resources.sql_files import attach_parquet, rows, run, stream, workbench, write_rows
from resources.tables import SCHEMAS, Tables

SPLITS = ("train", "validation", "test")

SFT_ROWS = pa.schema(
    [("row_id", pa.string()), ("origin", pa.string()), ("source", pa.string()), ("session_id", pa.string()),
     ("workload", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("messages", pa.string()), ("tools", pa.string()),
     ("request", pa.string()), ("text", pa.string()), ("token_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())),
     ("prompt_shape", pa.string()), ("content_sha256", pa.string()), ("interaction_ids", pa.list_(pa.string())),
     ("quality", pa.float64()), ("difficulty", pa.float64())]
)


class DatasetError(Exception):
    """The rows and settings give no dataset; the message says what to change."""


class DatasetSettings(RenderingSettings):
    """How the rows of the supervised dataset are sampled, split and rendered."""

    mix: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Shares of the training rows by source or seed name, relative to each other. A source that is not named is "
        "left out. Empty: all rows of every source and seed",
    )
    max_rows: int | None = Field(None, ge=1, description="Most training rows. Left out: all")
    balance: Literal["none", "sqrt", "uniform"] = Field(
        "sqrt", description="Where a source gives fewer rows than it has: rows of each prompt shape in proportion to the "
        "shape's size (none), to the square root of its size (sqrt), or equally (uniform)")
    validation_share: float = Field(0.05, ge=0, lt=1, description="Share of the sessions for validation")
    test_share: float = Field(0.1, ge=0, lt=1, description="Share of the sessions for the test split, on which no stage trains")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of splits and samples")

    @model_validator(mode="after")
    def _possible(self):
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on; their sum must be below 1")
        if self.mix and not any(self.mix.values()):
            raise ValueError("mix holds only zeros; give at least one source or seed a share above 0")
        return self


@dataclass
class SftReport:
    """Rows of each split, and curated rows by decision."""

    rows: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    """Training rows by source, as the mix asked for, as far as rows were available."""
    by_rule: dict[str, int] = field(default_factory=dict)
    """Curated rows by the rule of their decision."""
    decisions: pa.Table | None = None

    def as_metrics(self) -> dict[str, dict[str, int]]:
        """The counts, for a manifest."""
        return {"rows": self.rows, "sessions": self.sessions, "sources": self.sources, "by_rule": self.by_rule}


def build_sft_dataset(
    curated: Path, seeds: Path | None, output: Path, settings: DatasetSettings, tables: Tables | None = None
) -> SftReport:
    """Builds the three splits. Raises DatasetError when they leave nothing to train on."""
    output.mkdir(parents=True, exist_ok=True)
    report = SftReport()
    seed = str(settings.seed)
    with workbench() as connection:
        attach_parquet(connection, "curated", curated)
        if seeds is None:
            connection.register("seeds", SEEDS.empty_table())
        else:
            attach_parquet(connection, "seeds", seeds)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "composing/datasets/curated_as_conversations")
        run(connection, "curating/clean/messages")
        run(connection, "composing/datasets/prefixes")
        run(connection, "composing/datasets/contained_rows")
        run(connection, "composing/datasets/training_conversations")
        run(
            connection, "composing/datasets/assigned_splits", seed=seed, test_share=settings.test_share,
            validation_share=settings.validation_share,
        )
        run(connection, "composing/datasets/clustered", balance=settings.balance)
        clusters: dict[str, dict[str, int]] = {}
        for source, cluster, count in run(connection, "composing/datasets/available").fetchall():
            clusters.setdefault(source, {})[cluster] = count
        available = {source: sum(sizes.values()) for source, sizes in clusters.items()}
        quotas = sampling_quotas(available, settings.mix, settings.max_rows)
        connection.register("quotas", _quota_table(clusters, quotas, settings.balance))
        run(connection, "composing/datasets/sampled", seed=seed)
        straddling = run(connection, "composing/datasets/count_split_sessions").fetchall()[0][0]
        if straddling:
            raise RuntimeError(f"{straddling} sessions lie in two splits of {output.name}")
        for split in SPLITS:
            report.rows[split] = write_rows(
                stream(connection, "composing/datasets/split_rows", split=split), output / f"{split}.parquet", SFT_ROWS
            )
            report.sessions[split] = 0
        for part in rows(connection, "composing/datasets/report").to_pylist():
            report.sessions[part["split"]] += part["sessions"] if part["origin"] == "interaction" else 0
            if part["split"] == "train":
                report.sources[part["source"]] = report.sources.get(part["source"], 0) + part["rows"]
        report.decisions = rows(connection, "composing/datasets/decisions", version=output.name).cast(SCHEMAS["decisions"])
        connection.register("decisions", report.decisions)
        report.by_rule = dict(run(connection, "composing/datasets/decision_counts").fetchall())
        curated_rows = run(connection, "composing/datasets/count_curated").fetchall()[0][0]
    if len(report.decisions) != curated_rows:
        raise RuntimeError(f"dataset {output.name}: {curated_rows} curated rows, {len(report.decisions)} decisions")
    if not report.rows["train"]:
        raise DatasetError(
            f"no training rows: {curated_rows} curated rows, sources with rows for training: "
            f"{', '.join(available) or 'none'}, mix: {settings.mix or 'everything'}"
        )
    RenderingSettings(**settings.model_dump(include=set(RenderingSettings.model_fields))).write(output)
    if tables is not None and curated_rows:
        workload = report.decisions["workload"][0].as_py()
        tables.replace("decisions", report.decisions, workload=workload, stage="dataset", version=output.name)
    return report


def sessions_in_two_splits(dataset: Path) -> int:
    """Number of sessions with rows in more than one split of a finished dataset; above 0, test data leaked into training."""
    files = [str(dataset / f"{split}.parquet") for split in SPLITS]
    with workbench() as connection:
        return run(connection, "composing/datasets/sessions_in_two_splits", files=files).fetchall()[0][0]


def sampling_quotas(available: dict[str, int], mix: dict[str, float], max_rows: int | None) -> dict[str, int]:
    """Training rows per source.

    Without a mix every row has the same chance. With a mix, the wanted number of rows (max_rows, or all rows of the named
    sources) is divided by weight; a source with too few rows gives all, and the others share the rest by their weights. No
    row is used twice.
    """
    weights = {source: (mix.get(source, 0.0) if mix else float(rows)) for source, rows in available.items()}
    named = sum(rows for source, rows in available.items() if weights[source] > 0)
    return _handed_out(available, weights, min(max_rows or named, named))


TEMPERATURES = {"none": 1.0, "sqrt": 0.5, "uniform": 0.0}


def cluster_quotas(sizes: dict[str, int], wanted: int, balance: str) -> dict[str, int]:
    """Rows per cluster of prompts, out of `wanted`: in proportion to size ** (1, 1/2 or 0), at most the cluster's size.

    With `uniform`, a cluster no larger than its equal share is used whole.
    """
    weights = {cluster: float(size) ** TEMPERATURES[balance] for cluster, size in sizes.items()}
    return _handed_out(sizes, weights, min(wanted, sum(sizes.values())))


def _handed_out(available: dict[str, int], weights: dict[str, float], wanted: int) -> dict[str, int]:
    """Integers that add up to `wanted` as far as possible: by weight, then by largest remainder (ties by hash of the name).

    A source with too few rows gives all, and the others share the rest.
    """
    given = dict.fromkeys(available, 0)
    still = [name for name in available if weights[name] > 0]
    while still and wanted > 0:
        total = sum(weights[name] for name in still)
        exact = {name: wanted * weights[name] / total for name in still}
        short = {name for name in still if available[name] <= exact[name]}
        if not short:
            given.update({name: int(share) for name, share in exact.items()})
            left = wanted - sum(given[name] for name in still)
            by_remainder = sorted(still, key=lambda name: (int(exact[name]) - exact[name], md5(name.encode()).hexdigest()))
            for name in by_remainder[:left]:
                given[name] += 1
            return given
        for name in short:
            given[name] = available[name]
            wanted -= available[name]
        still = [name for name in still if name not in short]
    return given


def _quota_table(clusters: dict[str, dict[str, int]], quotas: dict[str, int], balance: str) -> pa.Table:
    """Wanted training rows for each cluster of each source, with the source's total."""
    found = [
        {"source": source, "cluster": cluster, "rows": rows, "source_rows": quotas[source]}
        for source, sizes in clusters.items()
        for cluster, rows in cluster_quotas(sizes, quotas[source], balance).items()
    ]
    columns = [("source", pa.string()), ("cluster", pa.string()), ("rows", pa.int64()), ("source_rows", pa.int64())]
    return pa.Table.from_pylist(found, schema=pa.schema(columns))
