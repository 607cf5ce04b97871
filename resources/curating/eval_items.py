"""Evaluation items: the columns that `eval_suite` writes and that decontamination searches training rows for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

EVAL_ITEMS = pa.schema(
    [("suite", pa.string()), ("item_id", pa.string()), ("prompt", pa.string()), ("answer", pa.string())]
)


def read_eval_items(path: Path | None) -> pa.Table:
    """The items of a suite's items.parquet; an empty table for None. Other columns of the file are left out."""
    if path is None:
        return EVAL_ITEMS.empty_table()
    return pq.read_table(path).select(EVAL_ITEMS.names).cast(EVAL_ITEMS)
