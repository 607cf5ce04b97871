"""Counts bytes of live tensors and their peak, on any device and also for fake tensors without storage.

    with LiveBytes() as live:
        loss = step(model, batch); loss.backward()
    live.peak, live.now

Counts storages that are allocated inside the block, each once for all tensors that share it, until the last of these is
freed. With fake tensors (model_ops.torch_internals.FakeTensorMode) this measures a step that is never computed.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from model_ops.torch_internals import TorchDispatchMode, tree_leaves


class LiveBytes(TorchDispatchMode):
    """Context manager that tracks the storage of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        for tensor in tree_leaves((arguments, named)):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage(), was_there_before=True)
        result = operation(*arguments, **(named or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def hand_over(self, storage: torch.UntypedStorage) -> int:
        """Stops counting a storage; returns its bytes, or 0 if it was not counted."""
        size = self._known.get(id(storage), 0)
        self._known[id(storage)] = 0
        self.now -= size
        return size

    def _follow(self, storage: torch.UntypedStorage, was_there_before: bool = False) -> None:
        key = id(storage)
        if key in self._known:
            return
        size = 0 if was_there_before else storage.nbytes()
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._known.pop(key, 0)
