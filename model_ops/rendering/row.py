"""Rows of a dataset, and reading them.

for row in iterate_rows(dataset, "train"):          # Parquet: row_id, messages, tools, text, token_ids, labels, ...
    row.learnt_messages                             # indices of the answers with weight 1
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from model_ops.files import write_text
from model_ops.jobs import ModelError, Settings

Split = Literal["train", "validation", "test"]

ROWS_AT_ONCE = 512

COLUMNS = ("row_id", "messages", "tools", "text", "token_ids", "labels", "request", "ts", "interaction_ids")


LEARNT_REQUEST = "learnt_request"
"""Key of an assistant message that holds the request of that answer, where it differs from the row's own."""


@dataclass(frozen=True)
class Row:
    """One conversation: messages and tools in OpenAI's form. Without messages: a text whose tokens are all targets, or token
    ids with their labels (the id itself, or IGNORED)."""

    row_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    labels: list[int] | None = None
    request: dict[str, Any] | None = None
    """Template arguments of the request, besides messages and tools: chat_template_kwargs, documents, reasoning_effort,
    response_format, continue_final_message."""
    ts: datetime | None = None
    """Time of the request; templates that print a date print this one."""
    interaction_ids: tuple[str, ...] = ()
    """Logged interactions of the learnt answers, in order; further ones are copies."""

    def interaction_of(self, message: int) -> str | None:
        """The logged interaction of a learnt message; None if unknown."""
        learnt = self.learnt_messages
        known = len(self.interaction_ids) >= len(learnt)  # any other number of ids cannot be assigned
        return self.interaction_ids[learnt.index(message)] if known and message in learnt else None

    @property
    def learnt_messages(self) -> list[int]:
        """Indices of the assistant messages to learn. Weight 0 is context only."""
        return [
            index
            for index, message in enumerate(self.messages)
            if message.get("role") == "assistant" and message.get("weight") != 0
        ]


def request_of(row: Row, message: int) -> dict[str, Any] | None:
    """Template arguments of the request for a message's answer."""
    own = row.messages[message].get(LEARNT_REQUEST)
    return own if isinstance(own, dict) else row.request


def read_rows(dataset: Path, split: Split) -> list[Row]:
    """The rows of one split. Raises ModelError if the file or a column is missing, or a row's JSON is invalid."""
    return list(iterate_rows(dataset, split))


def iterate_rows(dataset: Path, split: Split) -> Iterator[Row]:
    """Yields the rows of one split, reading a few at a time; see `read_rows`."""
    path = Path(dataset) / f"{split}.parquet"
    if not path.exists():
        raise ModelError(f"dataset {dataset} has no {split}.parquet; give the directory of a dataset with this split")
    try:
        with pq.ParquetFile(path) as file:
            for column in ("row_id", "messages"):
                if column not in file.schema_arrow.names:
                    raise ModelError(f"{path} has no column {column}; its columns are {', '.join(file.schema_arrow.names)}")
            present = [name for name in COLUMNS if name in file.schema_arrow.names]
            for table in file.iter_batches(ROWS_AT_ONCE, columns=present):
                yield from _rows_of(table, path)
    except (pa.ArrowException, OSError) as error:
        raise ModelError(
            f"{path} cannot be read as Parquet ({' '.join(str(error).split())}): restore it from a copy, or "
            "remove its directory and make the dataset again"
        ) from error


def _rows_of(table: pa.RecordBatch, path: Path) -> Iterator[Row]:
    columns = [table[name].to_pylist() if name in table.schema.names else [None] * len(table) for name in COLUMNS]
    for row_id, messages, tools, text, token_ids, labels, request, ts, interaction_ids in zip(*columns, strict=True):
        try:
            row = Row(
                str(row_id),
                json.loads(messages),
                json.loads(tools) if tools else None,
                text,
                token_ids,
                labels,
                json.loads(request) if request else None,
                ts if isinstance(ts, datetime) else None,
                tuple(interaction_ids or ()),
            )
        except (ValueError, TypeError) as error:
            raise ModelError(f"{path}: messages, tools or request of row {row_id} are not JSON text") from error
        if not isinstance(row.messages, list) or not all(isinstance(message, dict) for message in row.messages):
            raise ModelError(f"{path}: messages of row {row_id} are not a list of objects")
        if row.request is not None and not isinstance(row.request, dict):
            raise ModelError(f"{path}: request of row {row_id} is not an object")
        yield row


FILE = "rendering.json"


class RenderingSettings(Settings):
    """How answers become tokens to learn."""

    thinking: Literal["keep", "strip", "empty"] = Field(
        "keep",
        description="Reasoning before an answer. keep: learnt where the row has it; an answer without it is learnt as "
        "the chat template writes one. strip: no reasoning is learnt. empty: as keep, and an answer without reasoning is "
        "learnt with an empty block of reasoning before it, if the template has such a block",
    )
    most_unrenderable: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Largest share of rows that the chat template may refuse. Such rows are left out and "
        "counted by reason; a stage with a larger share of them stops",
    )

    @classmethod
    def read(cls, dataset: Path) -> Self:
        """The settings of a dataset. Raises ModelError if the file is damaged."""
        path = Path(dataset) / FILE
        try:
            return cls.model_validate_json(path.read_text())
        except FileNotFoundError:
            return cls()
        except (ValidationError, UnicodeDecodeError) as error:
            raise ModelError(f"{path} does not hold the settings of rendering; build the dataset again") from error

    def write(self, dataset: Path) -> None:
        """Writes the settings beside the dataset's rows."""
        write_text(Path(dataset) / FILE, self.model_dump_json(indent=2) + "\n")
