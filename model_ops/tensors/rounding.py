"""Rounds trained float32 weights to the dtype of a file stochastically, so that updates below half a step are not lost: the
saved weight is exact on average (arXiv 1502.02551). Draws follow from name and values: the same weights make the same file."""

from __future__ import annotations

from hashlib import sha256

import torch
from jaxtyping import Float
from torch import Tensor

LOW_BITS = 16
"""Bits of a float32 that bfloat16 does not have."""


def round_weight(weight: Float[Tensor, ...], dtype: torch.dtype, name: str) -> Float[Tensor, ...]:
    """float32 to bfloat16 by stochastic rounding; any other pair of dtypes as torch converts it."""
    if (weight.dtype, dtype) != (torch.float32, torch.bfloat16):
        return weight.to(dtype)
    bits = weight.contiguous().view(torch.int32)
    drawn_for = f"{name} {bits.sum(dtype=torch.int64).item()}"
    generator = torch.Generator().manual_seed(int.from_bytes(sha256(drawn_for.encode()).digest()[:8], "big") >> 1)
    below = torch.randint(1 << LOW_BITS, weight.shape, generator=generator, dtype=torch.int32).to(weight.device)
    up = ((bits + below) >> LOW_BITS << LOW_BITS).view(torch.float32)
    return torch.where(weight.isfinite() & up.isfinite(), up, weight).to(
        dtype
    )  # the largest values, infinities and NaN as torch rounds them


def saved_update(before: Float[Tensor, ...], exact: Float[Tensor, ...], saved: Float[Tensor, ...]) -> tuple[float, float]:
    """(inner product of the saved and the exact update, squared norm of the exact one): their ratio over all weights is the
    share of the training that the file holds."""
    before, exact, saved = (each.detach().float() for each in (before, exact, saved))
    update = exact - before
    return float(((saved - before) * update).sum()), float(update.square().sum())
