"""Counts the tokens of a dataset's splits in the tokenizers of the recipe's own models, without the chat template's own tokens.
Of a split with more than ROWS rows evenly spaced ones are counted, and the sum is scaled up.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from model_ops.files import vocabulary_digest

ROWS = 20_000
"""Most rows of a split that are tokenized."""
SPLITS = ("train", "validation", "test")
BATCH_ROWS = 1_000
_FILE = "tokenizer.json"


def local_tokenizers(places: Mapping[str, str | None]) -> dict[str, Path]:
    """The directories among some models that hold a tokenizer, by the name of the model."""
    return {name: Path(place) for name, place in places.items() if place and (Path(place) / _FILE).is_file()}


def vocabularies(tokenizers: Mapping[str, Path]) -> dict[str, Any]:
    """The part of a dataset's config that says which tokenizers count: nothing where none is local."""
    return {"tokenizers": {name: vocabulary_digest(place) for name, place in tokenizers.items()}} if tokenizers else {}


def count_tokens(dataset: Path, tokenizers: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    """Tokens of each split, by tokenizer."""
    from tokenizers import Tokenizer  # a second to import

    tokens = {}
    for name, directory in tokenizers.items():
        tokenizer = Tokenizer.from_file(str(directory / _FILE))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokens[name] = {split: _tokens(tokenizer, dataset / f"{split}.parquet") for split in SPLITS}
    return tokens


def _tokens(tokenizer: Any, path: Path) -> int:
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
        step = -(-rows // ROWS) if rows else 1
        counted = total = place = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=["messages", "text", "token_ids"]):
            chosen = [row for at, row in enumerate(batch.to_pylist(), start=place) if at % step == 0]
            place += len(batch)
            counted += len(chosen)
            total += sum(len(row["token_ids"]) for row in chosen if row["token_ids"] is not None)
            texts = [" ".join(_said(row)) for row in chosen if row["token_ids"] is None]
            total += sum(len(encoded.ids) for encoded in tokenizer.encode_batch(texts, add_special_tokens=False))
    return round(total * rows / counted) if counted else 0


def _said(row: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a row."""
    if row["text"] is not None:
        yield row["text"]
        return
    for message in json.loads(row["messages"]):
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        yield from (part if isinstance(part, str) else str(part.get("text") or "") for part in parts if part)
        if message.get("reasoning_content"):
            yield message["reasoning_content"]
        for call in message.get("tool_calls") or ():
            called = call.get("function") or {}
            yield f"{called.get('name') or ''} {called.get('arguments') or ''}"
