"""Tiny models of every family in the table (model_ops.families.table), and which of them the fast tests take."""

from transformers import PreTrainedModel

from model_ops.families.table import FAMILIES, SHARDED
from model_ops.models.tiny_families import tiny_model
from tests.thorough_cases import thorough_except

ARCHITECTURES = SHARDED
"""Families of which the fast tests try everything."""

EVERY = thorough_except(SHARDED, FAMILIES)
"""All families; `make test-thorough` tries those that the others leave out."""


def build(name: str, attention: str = "packed", vocab_size: int = 61, seed: int = 5, **changes) -> PreTrainedModel:
    """A random float32 model whose attention is far from uniform. Same name and seed, same weights."""
    return tiny_model(name, attention, seed, vocab_size=vocab_size, **changes)
