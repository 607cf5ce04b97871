"""The columns of a drafter's dataset. Importing this file imports no torch."""

import pyarrow as pa

from model_ops.files import column

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
