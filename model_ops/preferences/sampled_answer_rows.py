"""The columns of sampled.parquet: answers that a model gave while it was trained. Importing this file imports no torch."""

from __future__ import annotations

import pyarrow as pa

from model_ops.files import column

SAMPLED_ANSWER_ROWS = pa.schema(
    [
        ("row_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        column("step", pa.int64(), description="steps that the weights had learnt when they gave the answer"),
        column("answer", pa.int64(), description="number of the answer among those to its prompt, from 0"),
        column("grade", pa.float64(), description="how good the answer is, by the recipe's grader; null: no grade"),
        column("parts", pa.map_(pa.string(), pa.float64()), description="grade by part: parts['correct']"),
        column("problem", pa.string(), description="why a grader failed; empty if none did"),
        column("side", pa.string(), description="chosen or rejected in the prompt's pair; empty if neither"),
        column("tokens", pa.int64(), description="tokens of the answer, its end included"),
        column("ended", pa.bool_(), description="whether the answer ends, or was cut at max_new_tokens"),
    ]
)
"""A row for each answer. It holds no text, and ids by which an erasure finds its rows. Columns without a sentence are those of
the rows that were asked."""
