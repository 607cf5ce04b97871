"""Chooses the cleaned rows to train on, over all days of a workload: curated.parquet, decontamination.json, and one decision
per row. Rules, in order: thumbs down, corrected answer, low quality, contaminated, exact duplicate, near duplicate, semantic
duplicate, kept. Of duplicates the best copy is kept, by feedback, length, recency, id; the order in which days arrived does not
count."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from model_ops.files import write_json
from resources.curating.cleaning import MACROS
from resources.curating.curation import CurationSettings, NearDuplicates
from resources.curating.decontamination import find_contamination, read_eval_items
from resources.curating.duplicates.near_duplicates import ShingleFile, band_hashes, common_shingles, link, share_a_bucket, stamp
from resources.curating.duplicates.semantic_duplicates import group_vectors
from resources.curating.row_feedback import attach_row_feedback
from resources.curating.shingles import RaggedLists, shingle_sets, text_buffer
from resources.lake import Tables, attach_slice, rows, run, stream, workbench, write_rows
from resources.manifests import SCRATCH

_CONTAMINATED = pa.schema(
    [
        ("interaction_id", pa.string()),
        ("suite", pa.string()),
        ("item_id", pa.string()),
        ("part", pa.string()),
        ("share", pa.float64()),
    ]
)
MOST_COMMON = 0.25
"""Share of a row's shingles that different examples may have where its meaning is compared."""

_NEAR = pa.schema([("place", pa.int64()), ("best", pa.int64()), ("similarity", pa.float64())])


class CurationError(Exception):
    """The cleaned rows cannot be curated with these settings; the message says what to do first."""


@dataclass
class CurateReport:
    """read = rows + the sum of dropped."""

    read: int
    rows: int
    dropped: dict[str, int]
    suites: dict[str, dict[str, int]] = field(default_factory=dict)
    """By evaluation suite: items, items_found, rows_holding_items."""

    def as_metrics(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.rows, "dropped": self.dropped, "suites": self.suites}


def curate(
    tables: Tables,
    workload: str,
    output: Path,
    settings: CurationSettings,
    eval_items: Path | None,
    embed: Callable[[Path], np.ndarray] | None = None,
) -> CurateReport:
    """Curates all cleaned rows of a workload. embed: makes vectors from a directory with texts.parquet; needed only where
    semantic duplicates are enabled. Raises CurationError where rows were cleaned with other near-duplicate settings,
    RuntimeError where a row has no decision."""
    output.mkdir(parents=True, exist_ok=True)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions", "feedback", "judgements"):
            attach_slice(connection, tables, name, workload)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "curating/macros/labels_of")
        for query in ("cleaned_rows", "logged_rows", "logged_tokens", "candidates_with_ids", "corrected_answers"):
            run(connection, f"curating/curate/{query}")
        attach_row_feedback(connection, settings.feedback)
        judge = settings.judge
        run(connection, "curating/curate/scores", model=judge and judge.model, prompt_sha256=judge and judge.prompt_sha256)
        run(
            connection,
            "curating/curate/candidates",
            drop_thumbs_down=settings.feedback.drop_thumbs_down,
            min_quality=settings.min_quality,
        )
        suites = _decontaminate(connection, tables, workload, settings, eval_items)
        run(connection, "curating/curate/unique_rows", exact_duplicates=settings.exact_duplicates)
        _find_near_duplicates(connection, settings.near_duplicates)
        _find_semantic_duplicates(connection, settings, output, embed)
        run(connection, "curating/curate/decisions")
        written = write_rows(stream(connection, "curating/curate/curated"), output / "curated.parquet")
        decisions = rows(connection, "curating/curate/decision_rows", workload=workload, version=output.name)
        counts = dict(run(connection, "curating/curate/counts").fetchall())
        read = run(connection, "curating/curate/count_candidates").fetchall()[0][0]
    report = CurateReport(read, written, {rule: count for rule, count in counts.items() if rule != "kept"}, suites)
    if not read == len(decisions) == written + sum(report.dropped.values()):
        raise RuntimeError(f"curate {workload}: {read} rows read, but {written} kept and {report.dropped}")
    write_json(output / "decontamination.json", suites)
    tables.replace("decisions", decisions, workload=workload, stage="curate", version=output.name)
    return report


def _decontaminate(
    connection: duckdb.DuckDBPyConnection, tables: Tables, workload: str, settings: CurationSettings, eval_items: Path | None
) -> dict[str, dict[str, int]]:
    items = read_eval_items(eval_items)
    if not settings.decontamination.enabled or not len(items):
        connection.register("contaminated", _CONTAMINATED.empty_table())
        return {}
    connection.register("eval_items", items)
    find_contamination(connection, tables, workload, settings.decontamination)
    return {suite.pop("suite"): suite for suite in rows(connection, "curating/decontaminate/suite_report").to_pylist()}


def _find_near_duplicates(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> None:
    if not settings.enabled:
        connection.register("near_duplicates", _NEAR.empty_table())
        return
    others = run(connection, "curating/curate/other_signatures", stamp=stamp(settings)).fetchall()[0][0]
    if others:
        raise CurationError(
            f"near_duplicates asks for {settings.bands} bands of {settings.rows} hashes of {settings.ngram}-grams, and "
            f"{others} rows were cleaned with other settings: materialize cleaned_interactions again for all days. Rows that "
            "retention.raw_days emptied keep their signature: with any of them, keep the settings, or set "
            "near_duplicates.enabled to false"
        )
    signed = rows(connection, "curating/curate/signatures").combine_chunks()
    places = signed["place"].to_numpy()
    bands = band_hashes(signed["signature"].combine_chunks(), settings.bands)
    suspects = share_a_bucket(bands)
    connection.register("suspects", pa.table({"place": places[suspects]}))
    run(connection, "curating/curate/texts_to_compare")
    with ShingleFile() as sets:
        links = link(bands, suspects, _suspect_sets(connection, sets, settings), settings)
    copies = links.likeness > 0
    connection.register(
        "near_duplicates",
        pa.table({"place": places[copies], "best": places[links.best[copies]], "similarity": links.likeness[copies]}),
    )


def _suspect_sets(connection: duckdb.DuckDBPyConnection, sets: ShingleFile, settings: NearDuplicates) -> RaggedLists:
    for batch in stream(connection, "curating/curate/suspect_texts"):
        for group in shingle_sets(text_buffer(batch["new_turn"]), text_buffer(batch["answer"]), settings.ngram):
            sets.add(*group)
    return sets.read()


def _find_semantic_duplicates(
    connection: duckdb.DuckDBPyConnection, settings: CurationSettings, output: Path, embed: Callable[[Path], np.ndarray] | None
) -> None:
    """Creates `semantic_duplicates` (place, best, similarity): remaining rows whose meaning a better row already has. A row
    with much text that different examples share is compared with none: its vector shows that text, not the example."""
    if not settings.semantic_duplicates.enabled:
        connection.register("semantic_duplicates", _NEAR.empty_table())
        return
    if embed is None:
        raise CurationError("semantic_duplicates is enabled, and nothing was given that makes embeddings")
    folder = output / SCRATCH / "semantic"
    folder.mkdir(parents=True, exist_ok=True)
    places = rows(connection, "curating/curate/remaining_rows")["place"].to_numpy()
    connection.register("suspects", pa.table({"place": places}))
    run(connection, "curating/curate/texts_to_compare")
    with ShingleFile() as file:
        sets = _suspect_sets(connection, file, settings.near_duplicates)
        before = np.concatenate([[0], np.cumsum(common_shingles(sets, settings.near_duplicates))])
        first, last = sets.offsets[:-1:3], sets.offsets[2::3]
        places = places[before[last] - before[first] <= MOST_COMMON * (last - first)]
    connection.register("suspects", pa.table({"place": places}))
    write_rows(stream(connection, "curating/curate/remaining_texts"), folder / "texts.parquet")
    best, likeness = group_vectors(embed(folder), settings.semantic_duplicates.similarity)
    copies = likeness > 0
    connection.register(
        "semantic_duplicates", pa.table({"place": places[copies], "best": places[best[copies]], "similarity": likeness[copies]})
    )
