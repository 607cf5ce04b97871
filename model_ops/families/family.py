"""What the operations must know of a model family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rows = Literal["packed", "one document"]
"""How documents share a training row: several with attention that stays within each, or computed one beside the other, because
the family carries a state along the row."""


@dataclass(frozen=True)
class Family:
    """A model family of transformers, by the `model_type` of its config.json.

    title: for people. attention, norms, router: what its blocks hold, for the documentation (router: None for a dense model).
    rows: how training keeps documents apart. fast: `model_ops.decoding.incremental` decodes it with fused products; others
    run transformers' own blocks over a cache. shards: several processes can share its
    weights. note: what an operation leaves out, one sentence.
    """

    model_type: str
    title: str
    attention: str
    norms: str
    router: str | None = None
    rows: Rows = "packed"
    fast: bool = False
    shards: bool = False
    note: str = ""
