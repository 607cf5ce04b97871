"""How the answers of a dataset were served: parameters of each request, and its exact token ids where the log has them.

    report = build_served_answers(tables, "math-tutor", sft_dataset, output)

Writes served.parquet into `output`: interaction_id, model, served_model_digest, params (JSON text), finish_reason,
prompt_token_ids, completion_token_ids. One row an interaction whose answer is learnt in train.parquet or
validation.parquet. Ids are null where the log has none, and where personal data was redacted from the row: they still
say it. model_ops.answering.served_answers reads the file.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from resources.sql_files import attach_slice, stream, workbench, write_rows
from resources.tables import SCHEMAS, Tables

SERVED = pa.schema([SCHEMAS["interactions"].field(name) for name in (
    "interaction_id", "model", "served_model_digest", "params", "finish_reason", "prompt_token_ids",
    "completion_token_ids")])


def build_served_answers(tables: Tables, workload: str, dataset: Path, output: Path) -> dict[str, int]:
    """Fills `output`; returns how many answers there are, and how many with exact ids and with a digest of who gave them."""
    files = [str(path) for name in ("train", "validation") if (path := dataset / f"{name}.parquet").exists()]
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload)
        written = write_rows(stream(connection, "datasets/served_answers", files=files), output / "served.parquet", SERVED)
    table = pq.read_table(output / "served.parquet", columns=["completion_token_ids", "served_model_digest"])
    return {"answers": written, "with_token_ids": written - table["completion_token_ids"].null_count,
            "with_digest": written - table["served_model_digest"].null_count}
