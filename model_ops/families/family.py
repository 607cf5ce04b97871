"""What the operations must know of a model family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rows = Literal["packed", "one document"]
"""How documents share a training row: several with attention that stays within each, or computed one beside the other, because
the family carries a state along the row."""


@dataclass(frozen=True)
class Family:
    """A model family of transformers, by the `model_type` of its config.json."""

    model_type: str
    title: str
    """Name for people."""
    attention: str
    norms: str
    router: str | None = None
    """attention, norms, router: content of the blocks, for the documentation; router is None for a dense model."""
    rows: Rows = "packed"
    """How training keeps documents apart."""
    fast: bool = False
    """Whether `model_ops.decoding.incremental` decodes it with fused products; other families run transformers' own blocks
    over a cache."""
    shards: bool = False
    """Whether several processes can share its weights."""
    note: str = ""
    """One sentence on what an operation leaves out."""
