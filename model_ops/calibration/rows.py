"""Calibration rows: training conversations of the recipe's own traffic, as the model is served, in a seeded order. A document
begins as the tokenizer's template begins it, so no bos comes twice."""

import random
from pathlib import Path

from model_ops.documents import Document, read_documents
from model_ops.jobs import ModelError
from model_ops.models import load_tokenizer, read_config
from model_ops.rendering import ServedTokens


def calibration_documents(
    dataset: Path, model: Path, rows: int, max_length: int, seed: int, served: Path | None = None
) -> list[Document]:
    """Up to `rows` documents of at most `max_length` tokens. Raises ModelError if the dataset has none for this model."""
    tokenizer = load_tokenizer(model)
    longest = min(max_length, read_config(model).get("max_position_embeddings") or max_length)
    ids = None if served is None else ServedTokens.read(served / "served.parquet")
    documents, counts = read_documents(dataset, "train", tokenizer, longest, "truncate", ids)
    if not len(documents):
        raise ModelError(
            f"no row of the dataset can calibrate: the model's chat template renders none of {counts['rows']} "
            "rows of the training split; set quantize.method to rtn, which needs no rows"
        )
    chosen = random.Random(seed).sample(range(len(documents)), min(rows, len(documents)))
    return [documents[index] for index in chosen]
