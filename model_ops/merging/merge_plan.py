"""Turns the settings of a merge into the function that merges one tensor, and into the candidates of a search.

    weights, scale = given_weights(settings)
    merge = tensor_merge(settings, weights, scale)        # (name, values of every model) -> merged values
    candidates(settings)                                  # [(weights, scale), ...] that a search tries
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from model_ops.merging.checkpoints import TensorMerge, generator_of
from model_ops.merging.methods import from_base, largest, linear, random_share, slerp
from model_ops.merging.settings import FROM_BASE, MergeSettings


def tensor_merge(settings: MergeSettings, weights: Sequence[float], scale: float) -> TensorMerge:
    """The function that merges one tensor. Methods that add to the base take its values first."""
    method = settings.method
    if method == "linear":
        return lambda name, values: linear(values, weights)
    if method == "slerp":
        return lambda name, values: slerp(*values, t=weights[1] / sum(weights))

    def merge(name: str, values: Sequence[Tensor]) -> Tensor:
        base, *others = values
        return from_base(base, others, weights, scale, trim=_trim(settings, name), elect=method in ("ties", "dare_ties"),
                         normalize=method == "ties")

    return merge


def _trim(settings: MergeSettings, name: str):
    if settings.method == "ties":
        return lambda difference, index: largest(difference, settings.density)
    if settings.method in ("dare_linear", "dare_ties"):
        return lambda difference, index: random_share(difference, settings.density,
                                                      generator_of(settings.seed, name, index))
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
    return [([part / steps for part in parts], scale) for parts in _partitions(steps, len(settings.listed))
            for scale in scales]


def _partitions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of `parts` whole numbers from 0."""
    for cuts in itertools.combinations(range(total + parts - 1), parts - 1):
        ends = (-1, *cuts, total + parts - 1)
        yield tuple(after - before - 1 for before, after in itertools.pairwise(ends))
