"""Builds the supervised dataset: curated conversations and seeds, mixed, sampled, and split by user, with its card,
rendering.json and tokenizers.json (vocabularies of the seeds' token ids). Of rows of a session that contain each other only the
longest is used; its assistant messages have weight 1 if curation kept their own interaction, else 0. The split is drawn by the
hash of the user (else the session), but a large enough stratum without a held-out user lends it one, which later versions keep.
Rows and seeds that repeat held-out conversations are left out."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.files import vocabulary_digest
from model_ops.jobs import counted
from model_ops.rendering import RenderingSettings
from resources.composing.dataset_card import SPLITS, write_card
from resources.composing.dataset_schemas import SEEDS, SFT_ROWS
from resources.composing.dataset_settings import DatasetError, DatasetSettings, RowFilter
from resources.composing.mixing import Pool, cluster_takes, sampling_quotas, shortfalls
from resources.composing.seeds import TOKENIZERS
from resources.curating import MACROS, NearDuplicates, near_copies
from resources.lake import SCHEMAS, Tables, attach_parquet, rows, run, stream, workbench, write_rows
from resources.reading import CHATS_SOURCE

ROWS = 20_000
"""Most rows of a split that are tokenized."""
BATCH_ROWS = 1_000
_FILE = "tokenizer.json"


def local_tokenizers(places: Mapping[str, str | None]) -> dict[str, Path]:
    return {name: Path(place) for name, place in places.items() if place and (Path(place) / _FILE).is_file()}


def vocabularies(tokenizers: Mapping[str, Path]) -> dict[str, Any]:
    """The part of a dataset's config that says which tokenizers count: nothing where none is local."""
    return {"tokenizers": {name: vocabulary_digest(place) for name, place in tokenizers.items()}} if tokenizers else {}


def count_tokens(dataset: Path, tokenizers: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    from tokenizers import Tokenizer  # a second to import

    tokens = {}
    for name, directory in tokenizers.items():
        tokenizer = Tokenizer.from_file(str(directory / _FILE))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokens[name] = {split: _tokens(tokenizer, dataset / f"{split}.parquet") for split in SPLITS}
    return tokens


def _tokens(tokenizer: Any, path: Path) -> int:
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
        step = -(-rows // ROWS) if rows else 1
        counted = total = place = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=["messages", "text", "token_ids"]):
            chosen = [row for at, row in enumerate(batch.to_pylist(), start=place) if at % step == 0]
            place += len(batch)
            counted += len(chosen)
            total += sum(len(row["token_ids"]) for row in chosen if row["token_ids"] is not None)
            texts = [" ".join(_said(row)) for row in chosen if row["token_ids"] is None]
            total += sum(len(encoded.ids) for encoded in tokenizer.encode_batch(texts, add_special_tokens=False))
    return round(total * rows / counted) if counted else 0


def _said(row: Mapping[str, Any]) -> Iterator[str]:
    if row["text"] is not None:
        yield row["text"]
        return
    for message in json.loads(row["messages"]):
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        yield from (part if isinstance(part, str) else str(part.get("text") or "") for part in parts if part)
        if message.get("reasoning_content"):
            yield message["reasoning_content"]
        for call in message.get("tool_calls") or ():
            called = call.get("function") or {}
            yield f"{called.get('name') or ''} {called.get('arguments') or ''}"


Lent = Mapping[str, list[str]]
"""Split -> hashes of users and sessions that are held out only because the split, or a stratum, would be empty."""

_LENT = pa.schema([("split", pa.string()), ("drawn", pa.string())])
_TRAINED = pa.schema([("session_id", pa.string())])


@dataclass
class SftReport:
    """Rows of each split, and curated rows and seeds by decision."""

    rows: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    """Training rows by source, repeats included."""
    by_rule: dict[str, int] = field(default_factory=dict)
    """Curated rows and seeds by the rule of their decision."""
    by_source_and_reason: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows of all splits."""
    synthetic: int = 0
    """Training rows that a model wrote, repeats included."""
    tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    """Tokens of each split, by tokenizer."""
    notes: list[str] = field(default_factory=list)
    """What the settings ask for and the rows do not give."""
    split_notes: list[str] = field(default_factory=list)
    """Splits whose share of the rows is far from the one that was asked for, and why."""
    lent: dict[str, list[str]] = field(default_factory=dict)
    decisions: pa.Table = field(default_factory=SCHEMAS["decisions"].empty_table)

    def as_metrics(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "decisions"}


def build_sft_dataset(
    curated: Path,
    seeds: Path | None,
    output: Path,
    settings: DatasetSettings,
    tables: Tables | None = None,
    near: NearDuplicates | None = None,
    lent_before: Lent | None = None,
    about: Mapping[str, Any] | None = None,
    only: RowFilter | None = None,
    earlier: Sequence[Path] = (),
    tokenizers: Mapping[str, Path] | None = None,
) -> SftReport:
    """Builds the three splits. near: curation's settings, by which seeds are compared with traffic. lent_before: `lent` of
    earlier versions. about: facts for the card. only: which rows of traffic are trained on. earlier: directories of earlier
    versions, whose training sessions stay in training. tokenizers: by name, to count tokens. Raises DatasetError where nothing
    is left to train on, too few users to hold out, or, with `strict`, less than the mix asks for."""
    output.mkdir(parents=True, exist_ok=True)
    report = SftReport()
    key = (about or {}).get("key", "datasets.sft")
    with workbench() as connection:
        _attach(connection, curated, seeds, lent_before or {})
        _split(connection, settings, near or NearDuplicates(), only or RowFilter(), earlier)
        available = _sample(connection, settings, report, key)
        for split in SPLITS:
            report.rows[split] = write_rows(
                stream(connection, "composing/datasets/split_rows", split=split), output / f"{split}.parquet", SFT_ROWS
            )
            report.sessions[split] = 0
        _count(connection, report, settings)
        report.decisions = rows(connection, "composing/datasets/decisions", version=output.name).cast(SCHEMAS["decisions"])
        connection.register("decisions", report.decisions)
        report.by_rule = dict(run(connection, "composing/datasets/decision_counts").fetchall())
        decided = run(connection, "composing/datasets/count_curated").fetchall()[0][0]
    if len(report.decisions) != decided:
        raise RuntimeError(f"dataset {output.name}: {decided} curated rows and seeds, {len(report.decisions)} decisions")
    if not report.rows["train"]:
        raise DatasetError(f"no training rows: {_what_leaves_none(available, report, only or RowFilter(), settings, key)}")
    RenderingSettings(**settings.model_dump(include=set(RenderingSettings.model_fields))).write(output)
    if seeds is not None and (seeds.parent / TOKENIZERS).exists():
        shutil.copyfile(seeds.parent / TOKENIZERS, output / TOKENIZERS)
    report.tokens = count_tokens(output, tokenizers) if tokenizers else {}
    shown = settings.model_dump(mode="json") | (only.model_dump(mode="json", exclude_defaults=True) if only else {})
    write_card(output, report.as_metrics(), shown, about or {})
    if tables is not None and decided:
        workload = report.decisions["workload"][0].as_py()
        tables.replace("decisions", report.decisions, workload=workload, stage="dataset", version=output.name)
    return report


def lent_by(metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """`lent` of all versions of a dataset together, from their manifests' metrics."""
    lent: dict[str, set[str]] = {}
    for each in metrics:
        for split, drawn in each.get("lent", {}).items():
            lent.setdefault(split, set()).update(drawn)
    return {split: sorted(drawn) for split, drawn in sorted(lent.items())}


def sessions_in_two_splits(dataset: Path) -> int:
    """Number of sessions with rows in more than one split of a finished dataset; above 0, test data leaked into training."""
    files = [str(dataset / f"{split}.parquet") for split in SPLITS]
    with workbench() as connection:
        return run(connection, "composing/splits/sessions_in_two_splits", files=files).fetchall()[0][0]


def _attach(connection: duckdb.DuckDBPyConnection, curated: Path, seeds: Path | None, lent_before: Lent) -> None:
    """Creates `curated`, `seeds`, and `prefixes`: every point of a conversation where the assistant has answered."""
    attach_parquet(connection, "curated", curated)
    if seeds is None:
        connection.register("seeds", SEEDS.empty_table())
    else:
        attach_parquet(connection, "seeds", seeds)
    lent = [{"split": split, "drawn": drawn} for split, names in lent_before.items() for drawn in names]
    connection.register("lent_before", pa.Table.from_pylist(lent, schema=_LENT))
    for macro in MACROS:
        run(connection, macro)
    run(connection, "composing/datasets/conversations")
    run(connection, "composing/datasets/prefixes")
    run(connection, "composing/datasets/contained_rows")
    run(connection, "composing/datasets/training_conversations")


def _split(
    connection: duckdb.DuckDBPyConnection,
    settings: DatasetSettings,
    near: NearDuplicates,
    only: RowFilter,
    earlier: Sequence[Path],
) -> None:
    """Creates `assigned_splits`, and `dropped_rows`: what would repeat another split's rows or traffic, or is not asked for."""
    run(
        connection,
        "composing/splits/split_groups",
        lend=True,
        seed=str(settings.seed),
        split_by=settings.split_by,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
    )
    groups, sessions = run(connection, "composing/splits/count_split_groups").fetchall()[0]
    if groups < 3 <= sessions and settings.split_by == "user" and settings.test_share + settings.validation_share > 0:
        raise DatasetError(
            f"{sessions:,} sessions are of {groups} user{'s' * (groups != 1)}, too few to hold one out: set "
            "datasets.sft.split_by to session, if the user id in the logs stands for many people"
        )
    _lend_to_splits(connection, settings, earlier)
    run(connection, "composing/splits/assigned_splits")
    run(connection, "composing/datasets/branches_of_held_out")
    run(connection, "composing/datasets/repeated_seeds")
    connection.register("near_copies", near_copies(connection, near))
    run(connection, "composing/datasets/unwanted_rows", **only.model_dump(), chats=CHATS_SOURCE)
    run(connection, "composing/datasets/dropped_rows")


def _lend_to_splits(connection: duckdb.DuckDBPyConnection, settings: DatasetSettings, earlier: Sequence[Path]) -> None:
    """Moves users of strata that a split would be without into it, but none that an earlier version trained on."""
    files = [str(path) for version in earlier if (path := version / "train.parquet").exists()]
    if files:
        run(connection, "composing/splits/trained_before", files=files)
    else:
        connection.register("trained_before", _TRAINED.empty_table())
    run(
        connection,
        "composing/splits/stratum_loans",
        strata=settings.stratify_by,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
    )
    run(connection, "composing/splits/lend")


def _sample(connection: duckdb.DuckDBPyConnection, settings: DatasetSettings, report: SftReport, key: str) -> dict[Pool, int]:
    run(connection, "composing/datasets/clustered", balance=settings.balance)
    clusters: dict[Pool, dict[str, int]] = {}
    for source, synthetic, cluster, count in run(connection, "composing/splits/available").fetchall():
        clusters.setdefault(Pool(source, synthetic), {})[cluster] = count
    available = {pool: sum(sizes.values()) for pool, sizes in clusters.items()}
    quotas = sampling_quotas(available, settings)
    report.notes = shortfalls(available, quotas, settings)
    if settings.strict and report.notes:
        raise DatasetError(f"{'; '.join(report.notes)}; nothing was made: ask for less, or set {key}.strict to false")
    connection.register("quotas", _quota_table(clusters, quotas, settings.balance))
    run(connection, "composing/datasets/sampled", seed=str(settings.seed))
    run(connection, "composing/datasets/sampled_texts")
    straddling = run(connection, "composing/splits/count_split_sessions").fetchall()[0][0]
    if straddling:
        raise RuntimeError(f"{straddling} sessions lie in two splits")
    return available


FAR_FROM_ASKED = 1.5
"""Factor between a split's share of the rows and the one asked for from which the report says why."""
_BOUNDS = {
    "before_first_day": "first_day", "after_last_day": "last_day", "language_not_asked_for": "languages",
    "below_min_quality": "min_quality", "below_min_difficulty": "min_difficulty", "below_min_feedback": "min_feedback",
}  # fmt: skip
"""The rules of `unwanted_rows` in datasets.sql, each with the setting of RowFilter that asks for it."""


def _what_leaves_none(
    available: Mapping[Pool, int], report: SftReport, only: RowFilter, settings: DatasetSettings, key: str
) -> str:
    there = {
        source: sum(count for pool, count in available.items() if pool.source == source)
        for source in sorted({pool.source for pool in available})
    }
    shown = ", ".join(f"{source} ({count:,})" for source, count in there.items())
    missed = ", ".join(
        f"{bound} ({_written(getattr(only, bound))}) leaves out {counted(report.by_rule[rule], 'row')} of traffic"
        for rule, bound in _BOUNDS.items()
        if rule in report.by_rule
    )
    if missed and not there:
        return f"{key}.{missed}, and no other row is for training; change the bound"
    if not there:
        return (
            f"none of the curated rows and seeds, {len(report.decisions):,} together, is for training; "
            "`select stage, rule, count(*) from decisions group by all` in `millrace sql` says what became of them"
        )
    if settings.mix and not there.keys() & {source for source, wish in settings.mix.items() if wish.rows or wish.share}:
        why, change = (f" left: {key}.{missed}", "change the bound, or ") if missed else ("", "")
        return (
            f"{key}.mix takes rows of {', '.join(settings.mix)}, which have none{why}; {change}add a source that has some: "
            f"{shown}"
        )
    return f"the bounds of {key} (limits, max_synthetic_share) leave none of those that there are: {shown}; raise a bound"


def _written(bound: Any) -> str:
    return ", ".join(bound) if isinstance(bound, list) else f"{bound:g}" if isinstance(bound, float) else str(bound)


def _count(connection: duckdb.DuckDBPyConnection, report: SftReport, settings: DatasetSettings) -> None:
    for part in rows(connection, "composing/datasets/report").to_pylist():
        source, placed = part["source"], part["rows"] + part["repeats"]
        report.sessions[part["split"]] += part["sessions"] if part["origin"] == "interaction" else 0
        reasons = report.by_source_and_reason.setdefault(source, {})
        for reason, count in ((part["reason"], part["rows"]), ("repeated", part["repeats"])):
            if count:
                reasons[reason] = reasons.get(reason, 0) + count
        if part["split"] == "train":
            report.sources[source] = report.sources.get(source, 0) + placed
            report.synthetic += placed if part["synthetic"] else 0
    for split, drawn in run(connection, "composing/splits/lent").fetchall():
        report.lent.setdefault(split, []).append(drawn)
    everyone = run(connection, "composing/splits/count_split_groups").fetchall()[0][0]
    for split, share, held in run(connection, "composing/splits/held_out_shares").fetchall():
        asked, lent = getattr(settings, f"{split}_share"), len(report.lent.get(split, []))
        if max(share, asked) > FAR_FROM_ASKED * min(share, asked):
            strata = f", {lent:,} of them so that every stratum is measured (stratify_by)" if lent else ""
            report.split_notes.append(
                f"{split} has {share:z.0%} of the rows where {split}_share asks for {asked:z.0%}, because each "
                f"{settings.split_by} is held out whole: {held:,} of {everyone:,}{strata}"
            )


def _quota_table(clusters: dict[Pool, dict[str, int]], quotas: dict[Pool, int], balance: str) -> pa.Table:
    quota_rows = [
        {
            "source": pool.source,
            "synthetic": pool.synthetic,
            "cluster": cluster,
            "copies": take.copies,
            "more": take.more,
            "source_rows": quotas[pool],
        }
        for pool, sizes in clusters.items()
        for cluster, take in cluster_takes(sizes, quotas[pool], balance).items()
    ]
    columns = [
        ("source", pa.string()),
        ("synthetic", pa.bool_()),
        ("cluster", pa.string()),
        ("copies", pa.int64()),
        ("more", pa.int64()),
        ("source_rows", pa.int64()),
    ]
    return pa.Table.from_pylist(quota_rows, schema=pa.schema(columns))
