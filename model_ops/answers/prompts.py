"""Prompts that a model in training answers, with what a grader needs to know of each row.

Rows are those of `preference_dataset` (prompt, chosen, rejected) or `rl_prompts` (messages, verifier). A prompt that several
rows have is asked once, unless each has a record of its own. Prompts that the template refuses, or that leave no room for
answers, are left out and counted.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering import ChatTemplate, Row, TurnEncoder, Unrenderable


@dataclass(frozen=True)
class SampledPrompt:
    """A prompt as a server renders it."""

    row_id: str
    text: str
    ids: list[int]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    columns: dict[str, Any]
    """The row's other columns, and what its column `verifier` holds, by name."""

    @property
    def tokens(self) -> Int[np.ndarray, " tokens"]:
        """`ids` as an array."""
        return np.array(self.ids, np.int32)


def read_sampled_prompts(
    dataset: Path, tokenizer: PreTrainedTokenizerBase, longest: int, split: str = "train"
) -> tuple[list[SampledPrompt], dict[str, int]]:
    """The prompts of a split, and counts. longest: tokens of a prompt.

    Raises ModelError for a file that is not there or cannot be read, and if no prompt is left."""
    path, counts = dataset / f"{split}.parquet", Counter[str]()
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} cannot be read as Parquet: make the dataset again") from error
    template, encoder, prompts = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer), dict[str, SampledPrompt]()
    for record in rows:
        row, columns = _parsed(record, path)
        key = json.dumps([row.messages, row.tools, columns.get("record")], sort_keys=True)
        if key in prompts:
            counts["repeated_prompts"] += 1
            continue
        try:
            text = template.prompt(row, len(row.messages))
        except Unrenderable:
            counts["unrenderable_prompts"] += 1
            continue
        ids = encoder.prompt(text)
        if not 0 < len(ids) <= longest:
            counts["long_prompts"] += 1
            continue
        prompts[key] = SampledPrompt(row.row_id, text, ids, row.messages, row.tools, columns)
    if not prompts:
        left_out = ", ".join(f"{name} {count}" for name, count in counts.items()) or "there are no rows"
        raise ModelError(
            f"{path} has no prompt that leaves room for answers ({left_out}): raise max_length, or lower max_new_tokens"
        )
    return list(prompts.values()), {name: counts[name] for name in ("repeated_prompts", "unrenderable_prompts", "long_prompts")}


def _parsed(record: dict[str, Any], path: Path) -> tuple[Row, dict[str, Any]]:
    """The prompt and the columns beside it. Raises ModelError for text that is no JSON."""
    columns = {name: value for name, value in record.items() if value is not None}
    try:
        messages = json.loads(columns.pop("prompt", None) or columns.pop("messages"))
        tools = json.loads(columns.pop("tools", "null"))
        columns |= {side: json.loads(columns[side])[0] for side in ("chosen", "rejected") if side in columns}
        verifier = json.loads(columns.pop("verifier", "{}"))
        request = json.loads(columns.pop("request", "null"))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ModelError(f"{path}: a column of row {record.get('row_id')} is not JSON text; make the dataset again") from error
    columns |= verifier if isinstance(verifier, dict) else {"verifier": verifier}
    return Row(str(record["row_id"]), messages, tools, request=request, ts=record.get("ts")), columns
