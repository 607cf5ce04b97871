"""Stands in for blocks of a model, returns the hidden states that it is given, and records calls as (hidden states, other
arguments)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Bypass(nn.Module):
    """The stand-in. Attributes that it does not have are those of the block, since some models read them (attention_type)."""

    def __init__(self, block: nn.Module):
        super().__init__()
        object.__setattr__(self, "_block", block)  # no submodule: its weights are not this module's

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_block"), name)

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        return hidden_states


class RecordingBypass(Bypass):
    """A bypass that remembers what it was called with."""

    def __init__(self, block: nn.Module):
        super().__init__(block)
        self.calls: list[tuple[Tensor, dict[str, object]]] = []

    def forward(self, hidden_states: Tensor, **named: object) -> Tensor:
        self.calls.append((hidden_states, named))
        return hidden_states


@contextmanager
def bypass_blocks(blocks: nn.ModuleList) -> Iterator[list[RecordingBypass]]:
    """Every block bypassed and recorded."""
    own, recorders = list(blocks), [RecordingBypass(block) for block in blocks]
    try:
        for index, recorder in enumerate(recorders):
            blocks[index] = recorder
        yield recorders
    finally:
        for index, block in enumerate(own):
            blocks[index] = block
