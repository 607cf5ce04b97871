"""Sizes of the models that a recipe makes, estimated from its settings and the base model's config. Imports no torch.

    sizes = model_sizes(recipe, look_at_base(recipe.base_model))
    sizes.base, sizes.student, sizes.served, sizes.drafter        # parameters; 0 where unknown or switched off
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pipelines.contract.base_choice import Base, BaseModelError, look_at_base
from pipelines.contract.recipe import Recipe


@dataclass(frozen=True)
class ModelSizes:
    """Parameters of each model."""

    base: int
    student: float
    served: float
    drafter: float
    layers: int
    """Layers of the base model."""
    block: float
    """Parameters of one layer."""
    width: int
    """Heads x head_dim of its attention; 0 if unknown."""


def model_sizes(recipe: Recipe, base: Base) -> ModelSizes:
    """The sizes, as far as the config says."""
    if base.kind == "tiny":
        tiny = recipe.tiny
        hidden, vocabulary, layers, width = tiny.hidden_size, tiny.vocab_size, tiny.layers, tiny.heads * tiny.head_dim
        parameters = vocabulary * hidden + layers * (
            2 * hidden * tiny.head_dim * (tiny.heads + tiny.kv_heads) + 3 * hidden * tiny.mlp_size)
    else:
        hidden, vocabulary = (int(base.config.get(name) or 0) for name in ("hidden_size", "vocab_size"))
        parameters, layers, width = base.parameters or 0, base.layers or 1, hidden
    share = _share_of_student(recipe, parameters, layers)
    heads = 2 * vocabulary * hidden
    block = max(0, parameters - heads) / layers
    return ModelSizes(
        parameters, parameters * share if recipe.student.enabled else 0,
        parameters * (share if recipe.student.enabled else 1), block + heads if recipe.speculator.enabled else 0, layers, block,
        width)


def _share_of_student(recipe: Recipe, parameters: int, layers: int) -> float:
    """Parameters of the student relative to those of the base model; 1 if its own base cannot be read."""
    if recipe.student.base is not None:
        with suppress(BaseModelError):
            return (look_at_base(recipe.student.base).parameters or parameters) / max(1, parameters)
        return 1.0
    kept = recipe.student.kept_layers
    return kept if kept < 1 else min(1.0, kept / layers)
