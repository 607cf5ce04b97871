"""The columns of an evaluation's files of rows: likelihood, task_scores, acceptance. Importing this file imports no torch."""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pyarrow as pa

from model_ops.drafting import AcceptanceRow
from model_ops.files import column, renamed_when_complete
from model_ops.jobs import Job


def finished(job: Job, name: str, measure_it: Callable[[], Any]) -> Any:
    """The result of `measure_it` as JSON values, cached together with the job's settings and inputs."""
    path, key = job.output / ".work" / f"{name}.json", part_key(job)
    if path.exists():
        part = json.loads(path.read_text())
        if part["key"] == key:
            return part["value"]
    value = measure_it()
    with renamed_when_complete(path) as temporary:
        temporary.write_text(json.dumps({"key": key, "value": value}))
    return value


def part_key(job: Job) -> list[Any]:
    """What a part depends on, as JSON values: the job's settings and inputs, and the columns of its rows."""
    # Results of an older version are measured again.
    columns = [*(field.name for field in fields(AcceptanceRow)), *TASK_ROWS.names]
    inputs = {name: str(path) for name, path in sorted(job.inputs.items())}
    return json.loads(json.dumps([job.settings, inputs, columns]))


LIKELIHOOD_ROWS = pa.schema(
    [
        ("row_id", pa.string()),
        column(
            "model", pa.string(), description="the compared model: base, sft, student, quantized, target, reference, champion"
        ),
        column("nll_sum", pa.float64(), description="sum of the negative log-likelihood of the answer's tokens, in nats"),
        column("tokens", pa.int64(), description="tokens of the answer"),
    ]
)
"""likelihood.parquet: a row for each model and test row."""
TASK_ROWS = pa.schema(
    [
        ("suite", pa.string()),
        ("item_id", pa.string()),
        column("model", pa.string(), description="the model that answered: target, base, champion"),
        column("against", pa.string(), description="the model that a judge compared with; empty for other scores"),
        column("sampling", pa.string(), description="greedy, or sampled: the mean over the samples"),
        column("score", pa.float64(), description="from 0 to 1; of a judge 1 for a win, -1 for a loss"),
        column("solved", pa.float64(), description="whether one of the answers is wholly right: 1 or 0; empty for a judge"),
        column(
            "cut", pa.float64(), description="share of the answers that ended at the limit of their tokens; empty for a judge"
        ),
    ]
)
"""task_scores.parquet: a row for each item, model and way of sampling."""
ACCEPTANCE_ROWS = pa.schema(
    [
        column("drafter", pa.string(), description="name of the drafter; none: the target alone"),
        column("temperature", pa.float64(), description="sampling temperature"),
        column("num_speculative_tokens", pa.int64(), description="tokens drafted at a time (K)"),
        ("row_id", pa.string()),
        ("workload", pa.string()),
        ("prompt_shape", pa.string()),
        ("prompt_tokens", pa.int64()),
        column("turns", pa.int64(), description="number of user messages in the prompt"),
        column("has_system", pa.bool_(), description="whether the prompt has system instructions"),
        column("has_tools", pa.bool_(), description="whether the prompt offers tools"),
        column("tokens", pa.int64(), description="tokens of the answer"),
        ("finish_reason", pa.string()),
        column("looping", pa.bool_(), description="whether the answer loops"),
        column("forwards", pa.int64(), description="forward passes of the target"),
        column("drafts", pa.int64(), description="rounds that drafted"),
        column("drafted", pa.int64(), description="drafted tokens"),
        column("accepted", pa.int64(), description="drafted tokens that the target accepted"),
        column(
            "accepted_at",
            pa.list_(pa.int64()),
            description="rounds that accepted their draft at position 1, 2, ..., and all before it",
        ),
        column("sampling", pa.string(), description="how answers were sampled: greedy, temperature 1, as logged"),
    ]
)
"""acceptance.parquet: a row for each prompt, drafter and way of sampling."""
