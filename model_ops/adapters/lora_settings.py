"""Settings of low-rank adapters. Importing this file imports no torch."""

import math
from typing import Annotated

from pydantic import Field

from model_ops.jobs import Settings


class LoraSettings(Settings):
    """Low-rank adapters added to frozen weights: W + (alpha / rank) B A, or alpha / sqrt(rank) with rslora."""

    rank: int = Field(16, ge=1, le=65_536, description="Rank of an adapter: columns of B, rows of A")
    alpha: float = Field(32.0, gt=0, le=1e6, description="Scale: the update is multiplied by alpha / rank")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of an adapter's inputs that are dropped in training; off in preference and rft"
    )
    targets: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="Names of the layers that get adapters, or ends of names, such as q_proj. Left out: "
        "every linear layer of attention and MLP. Experts stored as one weight and routers get one where they are named: "
        "experts, experts.down_proj, mlp.gate",
    )
    rslora: bool = Field(False, description="Scale by alpha / sqrt(rank) instead (arXiv 2312.03732)")

    @property
    def scaling(self) -> float:
        """The factor on B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
