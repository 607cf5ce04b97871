"""Prompts for the target, from the conversations of a dataset: everything before the last assistant message.

    prompts = read_prompts(dataset / "train.parquet", tokenizer)

Rendered by the target's own chat template with its generation prompt, so that what is generated here is what a server
would generate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.errors import ModelError


@dataclass(frozen=True)
class Prompt:
    """One prompt and where it came from."""

    row_id: str
    session_id: str
    prompt_shape: str
    ids: list[int]


def read_prompts(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """One prompt for each row that holds an assistant message, in the file's order.

    The file has columns row_id and messages (JSON, or a list of structs), and may have session_id, prompt_shape and
    tools. Raises ModelError where it cannot be read, a column is missing, or a row's messages are no conversation.
    """
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; the dataset needs this file") from error
    except pa.ArrowInvalid as error:
        raise ModelError(f"{path} is not a Parquet file that can be read; build the dataset again") from error
    missing = {"row_id", "messages"} - set(table.column_names)
    if missing:
        raise ModelError(f"{path} has no column {sorted(missing)[0]}; build the dataset again")
    optional = [name for name in ("session_id", "prompt_shape", "tools") if name in table.column_names]
    prompts = []
    for row in table.select(["row_id", "messages", *optional]).to_pylist():
        row_id = str(row["row_id"])
        messages = _decoded(row["messages"], row_id, "messages")
        tools = _decoded(row.get("tools"), row_id, "tools")
        last = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=0)
        if last == 0:
            continue  # nothing for the target to answer
        ids = render_prompt(tokenizer, messages[:last], tools or None, row_id)
        prompts.append(Prompt(row_id, str(row.get("session_id") or row_id), str(row.get("prompt_shape") or ""), ids))
    return prompts


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]],
                  tools: list[dict[str, Any]] | None, row_id: str) -> list[int]:
    """Token ids of a conversation up to the point where the assistant speaks.

    Raises ModelError where the chat template is missing or refuses the conversation.
    """
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    except ValueError as error:
        raise ModelError("the target's tokenizer has no chat template; put chat_template.jinja beside it") from error
    except (jinja2.TemplateError, TypeError, KeyError) as error:
        raise ModelError(f"the chat template refuses the messages of row {row_id}; drop the row or mend the template"
                         ) from error
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _decoded(value: Any, row_id: str, column: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ModelError(f"row {row_id}: its {column} are not JSON; build the dataset again") from error
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ModelError(f"row {row_id}: its {column} are not a list of objects; build the dataset again")
    return value
