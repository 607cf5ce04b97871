"""The trained weights as they were before the training: the reference of a model that learns from new rows in every step.

    start = StartWeights(model)              # before the first step
    with start.in_place(): ...               # the model is the reference

Frozen weights do not change, and an adapter that begins as zero changes nothing, so with LoRA this copies the adapters only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class StartWeights:
    """Copies of a model's trained weights."""

    def __init__(self, model: nn.Module):
        self._held = [(each, each.detach().clone()) for each in model.parameters() if each.requires_grad]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchanges the model's weights with the copies inside the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        self._held = [(parameter, _exchanged(parameter, copy)) for parameter, copy in self._held]


def _exchanged(parameter: nn.Parameter, copy):
    held, parameter.data = parameter.data, copy
    return held
