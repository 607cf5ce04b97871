"""Checks that a model and its tokenizer match in size, before weights are loaded.

    refuse_misfit(directory, tokenizer)

Two different vocabularies of the same size pass this check. The tokenizer comes from the model's own directory, which keeps
both together.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from model_ops.errors import ModelError
from model_ops.models.model_directory import headers, read_config

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")


def refuse_misfit(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ModelError if a token has no row in the embedding, or head and embedding differ in vocabulary size.

    Rows without a token (a vocabulary padded to a round number) are fine.
    """
    shapes = headers(directory)
    embedding = _rows(shapes, EMBEDDINGS)
    head = _rows(shapes, HEADS)
    config = read_config(directory)
    told = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if head is not None and embedding is not None and head != embedding:
        raise ModelError(f"{directory}: the embedding has {embedding} rows, the head {head}: one of them was resized without "
                         "the other; resize both (resize_token_embeddings) and save the model again")
    rows = embedding if embedding is not None else told
    if rows is None:
        return
    if told is not None and told != rows:
        raise ModelError(f"{directory}: config.json has vocab_size {told}, the embedding {rows} rows: the vocabulary was "
                         "resized without its config; save the model again with both")
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise ModelError(f"{directory}: the tokenizer has {len(tokenizer)} tokens with ids up to {highest}, the model's "
                         f"embedding {rows} rows; copy the tokenizer it was trained with, or resize the embedding")


def _rows(shapes: dict[str, tuple[int, ...]], ends: tuple[str, ...]) -> int | None:
    found = [shape[0] for name, shape in shapes.items() if name.endswith(ends) and shape]
    return found[0] if found else None
