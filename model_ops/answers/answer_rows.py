"""The schema of answers that a model gave while it was trained, in files of its directory. It imports no torch.

Erasure, the catalog and the approval page read them. Columns without a sentence are those of the rows that were asked."""

import pyarrow as pa

from model_ops.files import column

ROLLOUT_ROWS = pa.schema(
    [
        ("row_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        column(
            "step", pa.int64(), description="optimizer steps before its round, which metrics.jsonl learns from `step + 1` on"
        ),
        column("answer", pa.int64(), description="number of its attempt among those at the prompt, from 0"),
        column("last", pa.bool_(), description="whether no further rollout of the attempt follows: one row of each attempt"),
        column("version", pa.int64(), description="optimizer steps of the weights that sampled its first token"),
        column("grade", pa.float64(), description="how good the attempt is, by the recipe's grader; null: no grade"),
        column("parts", pa.map_(pa.string(), pa.float64()), description="grade by part: parts['correct']"),
        column("problem", pa.string(), description="why a grader or an environment failed; empty if none did"),
        column("tokens", pa.int64(), description="sampled tokens"),
        column("ended", pa.bool_(), description="whether the attempt came to its end, or a limit cut it"),
        column("learnt", pa.bool_(), description="whether it was learnt, or left out (equal grades, no grade, cut)"),
        column("gap", pa.float64(), description="mean difference of log-probability to the sampler's by token, where learnt"),
        column("text", pa.string(), description="the answer as sampled, special tokens included, without its end token"),
    ]
)
"""rollouts.parquet: a row for each rollout, with ids for an erasure. It shows text, so no package or push takes it."""

SAMPLED_ANSWER_ROWS = pa.schema(
    [
        *(ROLLOUT_ROWS.field(name) for name in ("row_id", "interaction_ids", "step", "answer", "grade", "parts", "problem")),
        column("side", pa.string(), description="chosen or rejected in the prompt's pair; empty if neither"),
        *(ROLLOUT_ROWS.field(name) for name in ("tokens", "ended")),
    ]
)
"""sampled.parquet: a row for each answer of which preference pairs were taken. It holds no text."""

RESCORED_ROWS = pa.schema(
    [
        *(ROLLOUT_ROWS.field(name) for name in ("row_id", "interaction_ids", "step", "answer")),
        column("grade", pa.float64(), description="how good the answer is, by the changed grader; null: no grade"),
        column("parts", pa.map_(pa.string(), pa.float64()), description="grade by part, by the changed grader"),
        column("problem", pa.string(), description="why the changed grader failed; empty if it did not"),
        column("old_grade", pa.float64(), description="the grade in the training; null: no grade"),
        column("old_parts", pa.map_(pa.string(), pa.float64()), description="grade by part in the training"),
    ]
)
"""rescored.parquet: a row for each answer that was graded again."""
