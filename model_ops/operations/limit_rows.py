"""The columns that operation `measure_lengths` writes. Importing this file imports no torch."""

import pyarrow as pa

from model_ops.files import column

LIMIT_ROWS = pa.schema(
    [
        column("stage", pa.string(), description="the recipe's section: sft, student, speculator or evaluation"),
        column("dataset_split", pa.string(), description="the split of sft_dataset: train, validation or test"),
        column("limit", pa.string(), description="the limit: a recipe key, or the model's positions"),
        column("tokens", pa.int64(), description="the limit's value in tokens; null where the model names no positions"),
        column("rows", pa.int64(), description="rows or prompts that were compared with the limit"),
        column("cut", pa.int64(), description="rows of which a part is lost"),
        column("lost", pa.int64(), description="rows that the stage cannot use at all"),
    ]
)
"""limits.parquet: a row for each limit and split."""
