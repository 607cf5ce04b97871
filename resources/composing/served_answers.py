"""Collects how the answers of a dataset were served: request parameters, and exact token ids where the log has them.

    report = build_served_answers(tables, "math-tutor", sft_dataset, output, CurationSettings())

Writes served.parquet into `output`: interaction_id, model, served_model_digest, params (JSON text), finish_reason,
prompt_token_ids, completion_token_ids; one row per interaction whose answer is in the train, validation or test split.
Ids are null if the log has none, if personal data was redacted from the row or is in its reasoning (the ids would still
contain it), or if their number differs from the server's count. model_ops.answering.served_answers reads the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.curating.curation import CurationSettings
from resources.curating.pii import Redactor, finder
from resources.curating.pii_scan import might_hold
from resources.sql_files import attach_slice, stream, workbench, write_rows
from resources.tables import SCHEMAS, Tables

SERVED = pa.schema([SCHEMAS["interactions"].field(name) for name in (
    "interaction_id", "model", "served_model_digest", "params", "finish_reason", "prompt_token_ids",
    "completion_token_ids")])
IDS = ("prompt_token_ids", "completion_token_ids")


def build_served_answers(tables: Tables, workload: str, dataset: Path, output: Path,
                         redaction: CurationSettings) -> dict[str, int]:
    """Fills `output` and returns counts of answers: all, with exact ids, with a digest of the weights, with ids left out by
    reason.

    redaction: how personal data is found, and whether it is replaced.
    """
    files = [str(path) for name in ("train", "validation", "test") if (path := dataset / f"{name}.parquet").exists()]
    counts: Counter[str] = Counter(answers=0, with_token_ids=0, with_digest=0, ids_miscounted=0, ids_of_private_thoughts=0)

    def examined(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            private = _private(batch["reasoning"], redaction)
            for name in IDS:
                kept = pc.if_else(pa.array(private), pa.scalar(None, batch.schema.field(name).type), batch[name])
                batch = batch.set_column(batch.schema.get_field_index(name), name, kept)
            counts["answers"] += len(batch)
            counts["with_token_ids"] += len(batch) - batch["completion_token_ids"].null_count
            counts["with_digest"] += len(batch) - batch["served_model_digest"].null_count
            counts["ids_miscounted"] += pc.sum(batch["miscounted"]).as_py() or 0
            counts["ids_of_private_thoughts"] += int(private.sum())
            yield batch.select(SERVED.names).cast(SERVED)

    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload)
        found = stream(connection, "composing/served_answers", files=files)
        write_rows(pa.RecordBatchReader.from_batches(SERVED, examined(found)), output / "served.parquet")
    return dict(counts)


def _private(thoughts: pa.Array, redaction: CurationSettings) -> np.ndarray:
    """For each JSON text, whether it has personal data to replace."""
    if redaction.pii != "redact":
        return np.zeros(len(thoughts), dtype=bool)
    held = np.asarray(thoughts.is_valid())
    if redaction.pii_engine == "builtin":
        held &= might_hold(thoughts)
    find = finder(redaction.pii_engine) if held.any() else None
    for place in np.flatnonzero(held):
        redactor = Redactor(find)
        redactor.redact_json(thoughts[place].as_py())
        held[place] = bool(redactor.found)
    return held
