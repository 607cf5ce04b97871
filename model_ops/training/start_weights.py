"""The trained weights as they were before a training, for a reference that is read while it goes on: only trained weights are
kept twice. `in_place()` makes the model compute as at its start."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from model_ops.parallel import local_part


class StartWeights:
    """A copy of the trained weights of a model."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._trained = [each for each in model.parameters() if each.requires_grad]
        self._start = [each.detach().clone() for each in self._trained]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has its start's weights inside the block, and is in eval mode."""
        self._model.eval()
        self._exchange()
        try:
            yield
        finally:
            self._exchange()
            self._model.train()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, begin in zip(self._trained, self._start, strict=True):
            if (mine := local_part(parameter)) is parameter:
                parameter.data, begin.data = begin.data, parameter.data
            else:  # FSDP gathers from the memory that it shards, so the values move
                own, start = mine.clone(), local_part(begin)
                mine.copy_(start)
                start.copy_(own)
