"""The model families whose blocks are known by the names of their tensors. Imports no torch."""

from __future__ import annotations

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""model_type of a config.json: families that are quantized, decoded and given a drafter, and whose tensors are checked by
name and shape."""

LINEAR_SUFFIXES = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))
"""Ends of the names of the Linear weights in their blocks."""


def is_block_linear(name: str) -> bool:
    """Whether a tensor is the weight of a Linear layer inside a block; lm_head and embeddings are not."""
    return ".layers." in name and name.endswith(LINEAR_SUFFIXES)
