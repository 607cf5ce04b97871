"""Activation checkpointing of a model's blocks: none; selective saves results of matrix products and fused attention (after
arXiv 2205.05198); full saves only the input of each block (arXiv 1604.06174). Offloading moves saved inputs to pinned host
memory. Gradients are the same in all cases; documents stay separate, since recomputation has the same arguments."""

from __future__ import annotations

import functools
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from model_ops.families import blocks_of
from model_ops.jobs import ModelError
from model_ops.training.settings import ActivationCheckpointing

KEPT_OPERATIONS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_flash_attention_forward",
        "_efficient_attention_forward",
    )
    if hasattr(torch.ops.aten, name)
)
"""Operations that `selective` does not recompute. Batched products (attention scores of short documents) are large and cheap,
so they are recomputed."""


def checkpoint_activations(model: nn.Module, checkpointing: ActivationCheckpointing, offload: bool = False) -> str | None:
    """Switches on checkpointing and offloading for every block. Returns a sentence if offloading has no effect here. Blocks are
    the modules of the model's list of layers. Another call replaces the earlier setting. Raises ModelError if the model has no
    such list, or for offload without checkpointing."""
    if offload and checkpointing == "none":
        raise ModelError(
            "offload_activations needs activation checkpointing: set activation_checkpointing to full or "
            "selective, or offload_activations to false"
        )
    blocks = [] if checkpointing == "none" and not _changed(model) else blocks_of(model)
    on_cuda = any(parameter.device.type == "cuda" for parameter in model.parameters())
    moved = OffloadedInputs(torch.cuda.Stream()) if offload and on_cuda else None
    for block in blocks:
        block.__dict__.pop("forward", None)
        if checkpointing != "none":
            block.forward = _Checkpointed(block, checkpointing, moved)
    if offload and not on_cuda:
        return "offload_activations does nothing on this device: what is kept lies in host memory already"
    return None


class _Checkpointed:
    """A block's forward with checkpointing. It is set on the module itself, so it runs inside the hooks of the module call:
    sharded weights are gathered before it runs, also in the backward pass."""

    def __init__(self, block: nn.Module, checkpointing: ActivationCheckpointing, moved: OffloadedInputs | None):
        self._block = weakref.ref(block)
        self._contexts: dict[str, Any] = {"context_fn": _keep_products} if checkpointing == "selective" else {}
        self._moved = moved
        functools.update_wrapper(self, type(block).forward)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **named)
        with self._moved.hooks() if self._moved is not None else nullcontext():
            return checkpoint(self._forward, *arguments, use_reentrant=False, **self._contexts, **named)

    def _forward(self, *arguments: Any, **named: Any) -> Any:
        """Runs the block without autocast's weight cache, which would hold a copy of every block's weights until the loss."""
        block = self._block()
        if block is None:
            raise ReferenceError("the block of a checkpointed forward no longer exists")
        kind = next(block.parameters()).device.type
        if not torch.is_autocast_enabled(kind):
            return type(block).forward(block, *arguments, **named)
        with torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False):
            return type(block).forward(block, *arguments, **named)


def _keep_products() -> tuple[AbstractContextManager, AbstractContextManager]:
    def policy(_: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in KEPT_OPERATIONS else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class OffloadedInputs:
    """Moves block inputs to host memory between their forward and backward use, in parallel with the computation. Checkpointing
    saves only the inputs of a block through the hooks around it. stream: CUDA stream of the copies (None: the caller's stream,
    for tests). Inputs are needed in reverse order, so using one starts fetching the one before it."""

    def __init__(self, stream: torch.cuda.Stream | None):
        self._stream = stream
        self._copies: list[_HostCopy] = []

    def hooks(self) -> AbstractContextManager:
        """The hooks to set around the call of a checkpointed block."""
        return saved_tensors_hooks(self._put_away, self._fetch)

    def _put_away(self, tensor: Tensor) -> _HostCopy | Tensor:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return tensor
        copy = _HostCopy(tensor, self._stream)
        self._copies.append(copy)
        return copy

    def _fetch(self, copy: _HostCopy | Tensor) -> Tensor:
        if isinstance(copy, Tensor):
            return copy
        self._copies = [other for other in self._copies if other is not copy]
        tensor = copy.take()
        if self._copies:
            self._copies[-1].fetch()
        return tensor


class _HostCopy:
    """One tensor in host memory."""

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream | None):
        self._device, self._stream = tensor.device, stream
        self._back: Tensor | None = None
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=stream is not None)
        if stream is None:
            self._host.copy_(tensor)
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)

    def fetch(self) -> Tensor:
        """Starts to copy the tensor back to its device."""
        if self._back is not None:
            return self._back
        if self._stream is None:
            self._back = self._host.to(self._device, copy=True)
            return self._back
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._back = self._host.to(self._device, non_blocking=True)
        return self._back

    def take(self) -> Tensor:
        """The tensor on its device, safe to use on the caller's stream."""
        back, self._back = self.fetch(), None
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            back.record_stream(torch.cuda.current_stream())
        return back


def _changed(model: nn.Module) -> bool:
    return any(isinstance(module.__dict__.get("forward"), _Checkpointed) for module in model.modules())
