"""Joins contexts of a row that begin alike into one document, so that a training step computes their beginning once.

    for document in join_contexts(documents, most_tokens=4_096): ...

A chat template that rewrites earlier turns (Qwen3, gpt-oss, DeepSeek) gives every answer of a conversation a context of its
own, and each holds the conversation so far: n answers cost n / 2 conversations. Here the longest context is the trunk of a
document, and every other context is a branch: only what follows the tokens that it has in common with the trunk. A branch
attends to that beginning and has its positions, so hidden states, losses and gradients are those of the separate contexts (to
rounding). Attention itself is computed for each context; everything else once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from model_ops.training.documents import Branch, Document

FEWEST_SHARED = 16
"""Tokens in common below which a context stays a document of its own."""


def join_contexts(contexts: Iterable[Document], most_tokens: int) -> Iterator[Document]:
    """The documents with neighbours of the same row joined where they begin alike, up to `most_tokens` tokens."""
    for _, of_row in itertools.groupby(contexts, key=lambda document: document.row_id):
        waiting = list(of_row)
        while waiting:
            longest = max(range(len(waiting)), key=lambda place: len(waiting[place]))
            trunk = waiting.pop(longest)
            document, waiting = _joined(trunk, waiting, most_tokens)
            yield document


def _joined(trunk: Document, others: list[Document], most_tokens: int) -> tuple[Document, list[Document]]:
    """The trunk with the other contexts that fit as branches, and the contexts that are left."""
    total, parts, branches, left = len(trunk), [trunk], [], []
    for other in others:
        at = _shared(trunk, other)
        length = len(other) - at
        if at < FEWEST_SHARED or total + length > most_tokens:
            left.append(other)
            continue
        total += length
        branches.append(Branch(at, length))
        parts.append(Document(other.row_id, other.input_ids[at:], other.targets[at:]))
    if not branches:
        return trunk, left
    return Document(trunk.row_id, np.concatenate([part.input_ids for part in parts]),
                    np.concatenate([part.targets for part in parts]), branches=tuple(branches)), left


def _shared(trunk: Document, other: Document) -> int:
    """Number of first tokens that `other` shares with the trunk. It keeps at least one token before its first target, because
    that token's output predicts the target."""
    length = min(len(trunk), len(other))
    different = np.flatnonzero(trunk.input_ids[:length] != other.input_ids[:length])
    first_target = 1 + int(np.argmax(other.targets[1:])) if other.targets[1:].any() else 1
    return min(int(different[0]) if len(different) else length, first_target - 1)
