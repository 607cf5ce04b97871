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


ANSWER_ROWS = pa.schema(
    [
        ("row_id", pa.string()),
        column("turn", pa.int32(), description="number of the answer in the conversation, from 0"),
        ("session_id", pa.string()),
        ("prompt_shape", pa.string()),
        ("workload", pa.string()),
        ("interaction_id", pa.string()),
        column("origin", pa.string(), description="origin of the answer: served or generated"),
        ("prompt_token_ids", pa.list_(pa.int32())),
        column("answer_token_ids", pa.list_(pa.int32()), description="token ids of the answer"),
        ("finish_reason", pa.string()),
        column("temperature", pa.float64(), description="sampling temperature"),
        column("sampling", pa.string(), description="sampling parameters of the answer, as JSON text"),
    ]
)
"""The files of a drafter's dataset: a row for each answer. Columns without a sentence are those of the rows that were asked."""
