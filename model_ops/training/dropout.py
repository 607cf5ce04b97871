"""Trains without dropout, whatever a base's config and `lora.dropout` say: a loss that compares the model with its reference or
its sampler reads those in evaluation mode, so what training mode draws would count as a change of the weights."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PretrainedConfig

from model_ops.jobs import Progress

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
