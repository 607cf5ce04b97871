"""Merges tensors of models that have the same shapes, and turns the settings of a merge into candidates of a search.

    weights, scale = given_weights(settings)
    merge = tensor_merge(settings, weights, scale)        # (name, values of every model) -> merged values
    candidates(settings)                                  # [(weights, scale), ...] that a search tries

    linear([a, b], [0.7, 0.3])                            # weighted mean, a model soup
    slerp(a, b, t=0.3)                                    # along the arc from a to b
    from_base(base, [a, b], weights=[1.0, 1.0], trim=partial(largest, density=0.5), elect=True, normalize=True)    # TIES

Merges are pure functions; every result is float32. Definitions follow mergekit (Goddard et al., arXiv 2403.13257), with one
difference: DARE scales the values that it keeps by 1 / density, as its paper does (Yu et al., arXiv 2311.03099, equation 3), so
that the expected result is task arithmetic; mergekit scales each tensor to its L1 norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from model_ops.operations.merging.checkpoints import TensorMerge, generator_of
from model_ops.operations.merging.settings import FROM_BASE, MergeSettings


def tensor_merge(settings: MergeSettings, weights: Sequence[float], scale: float) -> TensorMerge:
    """The function that merges one tensor. Methods that add to the base take its values first."""
    method = settings.method
    if method == "linear":
        return lambda name, values: linear(values, weights)
    if method == "slerp":
        return lambda name, values: slerp(*values, t=weights[1] / sum(weights))

    def merge(name: str, values: Sequence[Tensor]) -> Tensor:
        base, *others = values
        return from_base(
            base,
            others,
            weights,
            scale,
            trim=_trim(settings, name),
            elect=method in ("ties", "dare_ties"),
            normalize=method == "ties",
        )

    return merge


def _trim(settings: MergeSettings, name: str):
    if settings.method == "ties":
        return lambda difference, index: largest(difference, settings.density)
    if settings.method in ("dare_linear", "dare_ties"):
        return lambda difference, index: random_share(difference, settings.density, generator_of(settings.seed, name, index))
    return None


def given_weights(settings: MergeSettings) -> tuple[list[float], float]:
    """The weights and the scale that settings name, with defaults."""
    weights = settings.weights if isinstance(settings.weights, list) else [1.0] * len(settings.listed)
    return weights, 1.0 if settings.scale is None else settings.scale


def candidates(settings: MergeSettings) -> list[tuple[list[float], float]]:
    """Weights and scales of a search: all points of the simplex with step 1 / search_steps, times the scales
    k / search_steps, k from 1, where scale is left out of a method that has one."""
    steps = settings.search_steps
    scales = [settings.scale if settings.scale is not None else 1.0]
    if settings.method in FROM_BASE and settings.scale is None:
        scales = [step / steps for step in range(1, steps + 1)]
    return [([part / steps for part in parts], scale) for parts in _partitions(steps, len(settings.listed)) for scale in scales]


def _partitions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of `parts` whole numbers from 0."""
    for cuts in itertools.combinations(range(total + parts - 1), parts - 1):
        ends = (-1, *cuts, total + parts - 1)
        yield tuple(after - before - 1 for before, after in itertools.pairwise(ends))


COLLINEAR = 0.9995
"""Above this cosine slerp is a linear interpolation: the arc's formula divides by the sine of the angle."""

Values = Float[Tensor, "..."]
Trim = Callable[[Values, int], Values]
"""Difference from the base, index of its model -> the difference with some values set to 0."""


def linear(tensors: Sequence[Values], weights: Sequence[float]) -> Values:
    """sum(w_i x_i) / sum(w_i) (Wortsman et al., Model soups, arXiv 2203.05482)."""
    total = torch.zeros_like(tensors[0], dtype=torch.float32)
    for tensor, weight in zip(tensors, weights, strict=True):
        total += weight * tensor.float()
    return total / sum(weights)


def slerp(start: Values, end: Values, t: float) -> Values:
    """sin((1 - t) a) / sin(a) start + sin(t a) / sin(a) end, with a the angle between the flattened tensors (Shoemake 1985).

    Linear where the tensors are almost collinear or one is zero.
    """
    start, end = start.float(), end.float()
    norms = start.norm().double() * end.norm().double()
    cosine = ((start.double() * end.double()).sum() / norms).clamp(-1, 1) if norms > 0 else torch.tensor(1.0)
    if cosine.abs() > COLLINEAR:
        return (1 - t) * start + t * end
    angle = torch.arccos(cosine)
    return (torch.sin((1 - t) * angle) / torch.sin(angle)).float() * start + (
        torch.sin(t * angle) / torch.sin(angle)
    ).float() * end


def from_base(
    base: Values,
    tensors: Sequence[Values],
    weights: Sequence[float],
    scale: float = 1.0,
    trim: Trim | None = None,
    elect: bool = False,
    normalize: bool = False,
) -> Values:
    """base + scale * sum(w_i d_i), with d_i = trim(x_i - base).

    Task arithmetic (Ilharco et al., arXiv 2212.04089) has no trim and no election. elect: at each place only values count that
    have the sign of the weighted sum there (TIES, Yadav et al., arXiv 2306.01708). normalize: the sum at each place is divided
    by the weights that count there.
    """
    base = base.float()
    total = _sum(base, tensors, weights, trim)
    if not (elect or normalize):
        return base + scale * total
    positive = total >= 0
    mixed, divisor = torch.zeros_like(base), torch.zeros_like(base)
    for index, (tensor, weight) in enumerate(zip(tensors, weights, strict=True)):
        change = weight * _change(base, tensor, index, trim)
        counts = torch.where(positive, change > 0, change < 0) if elect else torch.ones_like(positive)
        mixed += change * counts
        divisor += weight * counts
    if normalize:
        mixed /= torch.where(divisor == 0, 1.0, divisor)
    return base + scale * mixed


def largest(difference: Values, density: float) -> Values:
    """The int(density * n) values of largest magnitude, others 0; at least one, so that a short vector keeps its direction."""
    keep = max(1, int(density * difference.numel()))
    if keep >= difference.numel():
        return difference
    flat = difference.flatten()
    kept = torch.zeros_like(flat)
    places = flat.abs().topk(keep).indices
    kept[places] = flat[places]
    return kept.view_as(difference)


def random_share(difference: Values, density: float, generator: torch.Generator) -> Values:
    """Each value with probability `density`, divided by it; else 0. The expectation is the difference."""
    if density >= 1:
        return difference
    return difference * (torch.rand(difference.shape, generator=generator) < density) / density


def _sum(base: Values, tensors: Sequence[Values], weights: Sequence[float], trim: Trim | None) -> Values:
    total = torch.zeros_like(base)
    for index, (tensor, weight) in enumerate(zip(tensors, weights, strict=True)):
        total += weight * _change(base, tensor, index, trim)
    return total


def _change(base: Values, tensor: Values, index: int, trim: Trim | None) -> Values:
    difference = tensor.float() - base
    return difference if trim is None else trim(difference, index)
