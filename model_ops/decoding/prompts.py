"""Reads prompts from a dataset's conversations: everything before the last assistant message, rendered by the target's own chat
template with its generation prompt, as a server does."""

import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.jobs import ModelError
from model_ops.rendering import ChatTemplate, Row, Split, TurnEncoder, Unrenderable, read_rows


@dataclass(frozen=True)
class Prompt:
    """One prompt, its row and its session."""

    row_id: str
    session_id: str
    prompt_shape: str
    ids: list[int]
    workload: str = ""
    turns: int = 1
    """User messages before the answer."""
    has_system: bool = False
    has_tools: bool = False
    interaction_id: str | None = None
    """The logged interaction with the answer, if it is known."""


def read_prompts(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """One prompt for each row of a split with an assistant message, in the file's order. A row that the chat template refuses
    has none. Raises ModelError as `rendering.row.read_rows` does, and if the tokenizer has no chat template."""
    rows = read_rows(dataset, split)
    path = dataset / f"{split}.parquet"
    known = pq.read_schema(path).names
    present = [name for name in ("session_id", "prompt_shape", "workload") if name in known]
    labels = pq.read_table(path, columns=present).to_pylist() if present else [{}] * len(rows)
    prompts, template, encoder = [], ChatTemplate.of(tokenizer), TurnEncoder(tokenizer)
    for row, label in zip(rows, labels, strict=True):
        last = max((place for place, message in enumerate(row.messages) if message.get("role") == "assistant"), default=0)
        if last > 0:  # otherwise there is no prompt
            before = row.messages[:last]
            try:
                ids = encoder.prompt(template.prompt(row, last))
            except Unrenderable:
                continue
            roles = [message.get("role") for message in before]
            prompts.append(
                Prompt(
                    row.row_id,
                    str(label.get("session_id") or row.row_id),
                    str(label.get("prompt_shape") or ""),
                    ids,
                    str(label.get("workload") or ""),
                    turns=roles.count("user"),
                    has_system=bool({"system", "developer"} & set(roles)),
                    has_tools=bool(row.tools),
                    interaction_id=row.interaction_of(last),
                )
            )
    return prompts


def render_prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> list[int]:
    """Token ids of a conversation with the generation prompt of the assistant. Raises ModelError if the chat template is
    missing or refuses the conversation."""
    try:
        return TurnEncoder(tokenizer).prompt(ChatTemplate.of(tokenizer).prompt(row, len(row.messages)))
    except Unrenderable as error:
        raise ModelError(f"row {row.row_id}: {error}; check the roles and fields of its messages") from error


def choose_prompts(prompts: list[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """A random sample of at most `limit` prompts, which does not depend on their order in the file."""
    if limit is None or len(prompts) <= limit:
        return prompts
    by_id = sorted(prompts, key=lambda prompt: prompt.row_id)
    return random.Random(seed).sample(by_id, limit)
