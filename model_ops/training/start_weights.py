"""What a loss that compares the model with its reference or its sampler needs: training without dropout, since those read
the model in evaluation mode, and the weights as they were at the start (`in_place()`), of which only trained ones are kept
twice."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PretrainedConfig

from model_ops.jobs import Progress
from model_ops.parallel import local_part

RATE = re.compile("drop|jitter")
"""In the names of all rates: attention_dropout, resid_pdrop, layerdrop; router_jitter_noise of mixtures of experts."""


@contextmanager
def without_dropout(model: nn.Module, progress: Progress, phase: str) -> Iterator[None]:
    """Inside the block every rate is 0, of layers and of configs that layers read. Notes those that are off."""
    modules = list(model.modules())
    configs = {id(each): each for module in modules if isinstance(each := vars(module).get("config"), PretrainedConfig)}
    rates = [
        (vars(holder), name, value)
        for holder in (*modules, *configs.values())
        for name, value in vars(holder).items()
        if type(value) in (int, float) and value and (RATE.search(name) or (name == "p" and isinstance(holder, _DropoutNd)))
    ]
    if off := sorted({f"{name} {value:g}" for _, name, value in rates if name != "p"}):
        progress.event(
            "note", message=f"{phase}: trains without dropout ({', '.join(off)}), as what it is compared with has none"
        )
    try:
        for values, name, _ in rates:
            values[name] = 0.0
        yield
    finally:
        for values, name, value in rates:
            values[name] = value


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
