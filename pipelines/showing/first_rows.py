"""The first records of a recipe's sources as a small dataset, for `millrace show` before anything was made.

    write_first_rows(recipe, folder)          # folder/train.parquet; NothingToShow if the sources have no answers
    untrained_tokenizer(folder, recipe)       # ChatML and the bytes of the rows, where the base model is not here

The pipeline's own ingest reads one small object of each source, into a lake in the same folder. Nothing is cleaned: duplicates
and what rules would drop are shown too.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.contract.recipe import Recipe
from pipelines.showing.nothing_to_show import NothingToShow
from resources.inspecting.first_look import LISTED
from resources.lake import Lake
from resources.reading.ingest import ingest
from resources.reading.sources import SourceError, SourceSettings, objects_after, open_object
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import Tables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD = 4_000_000
"""Bytes of a large log of lines that are read."""
LINES = (".jsonl", ".ndjson", ".log")


def write_first_rows(recipe: Recipe, folder: Path) -> None:
    """Writes train.parquet into an empty folder."""
    tables = Tables(Lake.open(folder / "lake"))
    try:
        sources = {name: _one_object(name, source, folder) for name, source in recipe.sources.items()}
        ingest(tables, recipe.workload, sources)
    except SourceError as error:
        raise NothingToShow(str(error)) from error
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", recipe.workload)
        found = rows(connection, "inspecting/first_rows").to_pylist()
    if not found:
        raise NothingToShow(f"the first objects of {', '.join(recipe.sources)} hold no answered request: millrace inspect says "
                            "what they hold")
    made = [{"row_id": row["row_id"], "tools": row["tools"], "ts": row["ts"], "messages": json.dumps(_conversation(row))}
            for row in found]
    pq.write_table(pa.Table.from_pylist(made), folder / "train.parquet")


def _conversation(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The request's messages as context, and the answer."""
    before = [{**message, "weight": 0} if message.get("role") == "assistant" else message
              for message in json.loads(row["messages"] or "[]")]
    return [*before, json.loads(row["completion"])]


def _one_object(name: str, source: SourceSettings, folder: Path) -> SourceSettings:
    """The source with its smallest object of the first ones, or with the beginning of that, if it is a large file of lines."""
    listed = [item for item in islice(objects_after(name, source), LISTED) if item.bytes]
    if not listed:
        return source  # ingest says that nothing is there
    item = min(listed, key=lambda found: found.bytes)
    if item.bytes <= HEAD or not item.uri.endswith(LINES):
        return source.model_copy(update={"uri": item.uri})
    head = folder / f"{name}{Path(item.uri).suffix}"
    with open_object(item) as content:
        head.write_bytes(content.read(HEAD).rpartition(b"\n")[0])
    return source.model_copy(update={"uri": str(head)})


def untrained_tokenizer(folder: Path, recipe: Recipe) -> PreTrainedTokenizerBase:
    """A tokenizer of the rows' own words with the template of `tiny`."""
    from model_ops.operations.tiny_tokenizer import train_tokenizer

    return train_tokenizer(pq.read_table(folder / "train.parquet")["messages"].to_pylist(), recipe.tiny.resolved())
