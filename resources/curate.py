"""Which cleaned rows make good training data: one pass over all days of a workload.

    report = curate(tables, "math-tutor", output, CurationSettings(), eval_items=suite / "items.parquet")

Reads the rows that `resources.clean` kept and writes into `output`:

    curated.parquet          the rows that stay, with all that the datasets need
    decontamination.json     by evaluation suite: items found in the traffic, rows that hold them

and into the table `decisions`, stage "curate", version = the output directory's name: one decision for each row. The
rules, in order: thumbs down, contaminated, exact duplicate, near duplicate, kept. Of duplicates the best copy stays:
people's word first, then the fuller, then the newer, then the id. Feedback is read afresh, since it arrives after its
day was cleaned. Nothing depends on the order in which days arrived.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from resources.atomic import write_json
from resources.clean import MACROS
from resources.curation import CurationSettings, NearDuplicates
from resources.decontamination import find_contamination
from resources.shingles import Ragged, turn_shingles
from resources.sql_files import attach_slice, rows, run, stream, workbench, write_rows
from resources.tables import Tables

EVAL_ITEMS = pa.schema(
    [("suite", pa.string()), ("item_id", pa.string()), ("prompt", pa.string()), ("answer", pa.string())]
)

_CONTAMINATED = pa.schema(
    [("interaction_id", pa.string()), ("suite", pa.string()), ("item_id", pa.string()), ("part", pa.string()),
     ("share", pa.float64())]
)
_EDGES = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("similarity", pa.float64())])


class CurationError(Exception):
    """The cleaned rows cannot be curated with these settings; the message says what to do first."""


@dataclass
class CurateReport:
    """read = kept + the sum of dropped."""

    read: int
    kept: int
    dropped: dict[str, int]
    suites: dict[str, dict[str, int]] = field(default_factory=dict)
    """By evaluation suite: items, items_found, rows_holding_items."""

    def as_metrics(self) -> dict[str, Any]:
        return asdict(self)


def curate(
    tables: Tables, workload: str, output: Path, settings: CurationSettings, eval_items: Path | None
) -> CurateReport:
    """Curates all cleaned rows of a workload.

    Raises CurationError where the rows were cleaned with fewer hashes than the settings ask for, RuntimeError should a
    row's fate go missing.
    """
    output.mkdir(parents=True, exist_ok=True)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions", "feedback"):
            attach_slice(connection, tables, name, workload)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "curate/entrants_as_conversations")
        run(connection, "clean/feedback")
        run(connection, "curate/entrants", drop_thumbs_down=settings.feedback.drop_thumbs_down)
        suites = _decontaminate(connection, settings, eval_items)
        run(connection, "curate/standing", exact_duplicates=settings.exact_duplicates)
        _find_near_duplicates(connection, settings.near_duplicates)
        connection.register("groups", rows(connection, "curate/components"))
        run(connection, "curate/decisions")
        connection.unregister("edges")
        run(connection, "curate/sessions")
        run(connection, "curate/session_edges")
        connection.register("session_groups", rows(connection, "curate/components"))
        kept = write_rows(stream(connection, "curate/curated"), output / "curated.parquet")
        decisions = rows(connection, "curate/decision_rows", workload=workload, version=output.name)
        counts = dict(run(connection, "curate/counts").fetchall())
        read = run(connection, "curate/count_entrants").fetchall()[0][0]
    report = CurateReport(read, kept, {rule: count for rule, count in counts.items() if rule != "kept"}, suites)
    if not read == len(decisions) == kept + sum(report.dropped.values()):
        raise RuntimeError(f"curate {workload}: {read} rows read, but {kept} kept and {report.dropped}")
    write_json(output / "decontamination.json", suites)
    tables.replace("decisions", decisions, workload=workload, stage="curate", version=output.name)
    return report


def _decontaminate(
    connection: duckdb.DuckDBPyConnection, settings: CurationSettings, eval_items: Path | None
) -> dict[str, dict[str, int]]:
    items = EVAL_ITEMS.empty_table() if eval_items is None else pq.read_table(eval_items).select(EVAL_ITEMS.names)
    if not settings.decontamination.enabled or not len(items):
        connection.register("contaminated", _CONTAMINATED.empty_table())
        return {}
    connection.register("eval_items", items.cast(EVAL_ITEMS))
    find_contamination(connection, settings.decontamination)
    return {suite.pop("suite"): suite for suite in rows(connection, "curate/suite_report").to_pylist()}


def _find_near_duplicates(connection: duckdb.DuckDBPyConnection, settings: NearDuplicates) -> None:
    """Leaves `edges`: pairs of rows, by place, whose similarity is at or above the threshold."""
    if not settings.enabled:
        connection.register("edges", _EDGES.empty_table())
        return
    shortest = run(connection, "curate/shortest_signature", hashes=settings.hashes).fetchall()[0][0]
    if shortest != settings.hashes:
        raise CurationError(
            f"near_duplicates asks for {settings.bands} bands of {settings.rows}, {settings.hashes} hashes, and some "
            f"rows were cleaned with {shortest}: materialize cleaned_interactions again for all days"
        )
    run(connection, "curate/pairs", bands=settings.bands, rows=settings.rows)
    run(connection, "curate/pairs_as_conversations")
    run(connection, "clean/messages")
    run(connection, "clean/texts")
    texts = rows(connection, "curate/suspect_texts")
    shingles = _sorted_sets(turn_shingles(texts["new_turn"], texts["answer"], settings.ngram))
    connection.register(
        "shingled",
        pa.table(
            {
                "place": texts["place"],
                "shingles": pa.LargeListArray.from_arrays(pa.array(shingles.offsets), pa.array(shingles.values)),
            }
        ),
    )
    run(connection, "curate/edges", similarity=settings.similarity)


def _sorted_sets(ragged: Ragged) -> Ragged:
    """Each text's values sorted, repeated ones once."""
    owner = np.repeat(np.arange(len(ragged.lengths)), ragged.lengths)
    order = np.lexsort((ragged.values, owner))
    owner, values = owner[order], ragged.values[order]
    first = np.ones(len(values), dtype=bool)
    first[1:] = (owner[1:] != owner[:-1]) | (values[1:] != values[:-1])
    counts = np.bincount(owner[first], minlength=len(ragged.lengths))
    return Ragged(values[first], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


DIGESTS = ("interactions", "cleaned_interactions", "feedback")


def slice_digest(tables: Tables, name: str, workload: str) -> str:
    """sha256 over a workload's sorted (interaction_id, content_sha256): the digest of a table slice as an input.

    For cleaned_interactions each row's cleaned facts count as well, and feedback, which has no content_sha256, is
    hashed record by record. Rewriting or compacting a table leaves it as it is. Raises ValueError for a table without
    such rows.
    """
    if name not in DIGESTS:
        raise ValueError(f"table {name} has no slice digest; those that have: {', '.join(DIGESTS)}")
    digest = hashlib.sha256()
    with workbench() as connection:
        attach_slice(connection, tables, name, workload)
        for batch in stream(connection, f"digests/{name}"):
            digest.update("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())
    return digest.hexdigest()

