"""Tiny models of every family in the table (model_ops.families.table), and which of them the fast tests take."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from model_ops.families.table import FAMILIES, SHARDED
from model_ops.models.tiny_families import tiny_model

ARCHITECTURES = SHARDED
"""Families of which the fast tests try everything."""

EVERY = [name if name in SHARDED else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
"""All families; the slow tests try those that the fast ones leave out."""


def build(name: str, attention: str = "packed", vocab_size: int = 61, seed: int = 5, **changes) -> PreTrainedModel:
    """A random float32 model whose attention is far from uniform. Same name and seed, same weights."""
    return tiny_model(name, attention, seed, vocab_size=vocab_size, **changes)
