"""What a step keeps of its forward pass: everything, the results of products only, or the inputs of blocks only.

    keep_less(model, "full", offload=False)    # before training; model.forward and the names of weights stay as they are

- none: autograd keeps what it needs. Fastest, largest.
- selective: of each block the results of matrix products and of fused attention are kept, what is cheap (norms,
  rotations, activation functions, copies) is computed again in the backward pass (arXiv 2205.05198's idea, by kind of
  operation instead of by module).
- full: of each block only its input is kept; the backward pass runs the block forward once more (arXiv 1604.06174).

Offload moves those kept block inputs to pinned host memory while later blocks run, and fetches each one while the block
after it goes backward. It needs checkpointing, and does something on CUDA only: elsewhere the inputs are in host memory
already, which `keep_less` says.

Gradients are the same in all cases: the same operations on the same values. Blocks may have trained weights, frozen ones
or adapters; documents stay apart, since a block is called again with the arguments it was called with.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from model_ops.blocks import blocks_of
from model_ops.errors import ModelError
from model_ops.training.settings import ActivationCheckpointing

KEPT_OPERATIONS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("mm", "addmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
                 "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
                 "_flash_attention_forward", "_efficient_attention_forward")
    if hasattr(torch.ops.aten, name)
)
"""What `selective` does not compute twice. Batched products are attention scores of short documents: large and cheap."""


def keep_less(model: nn.Module, checkpointing: ActivationCheckpointing, offload: bool = False) -> str | None:
    """Lets every block of `model` keep less of its forward pass. Returns a sentence where a wish does nothing here.

    Blocks are the modules of the model's list of layers. Calling it again replaces what an earlier call set.
    Raises ModelError where the model has no such list, or offload is asked for without checkpointing.
    """
    if offload and checkpointing == "none":
        raise ModelError("offload_activations moves the kept inputs of blocks: set activation_checkpointing to full or "
                         "selective, or leave it off")
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
    """A block's forward that keeps less. It stands in the block's own __dict__, inside the hooks of the module call:
    sharded weights are gathered before it runs, in the backward pass too."""

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
        """Without autocast's memory of weights it has cast: it would hold a copy of every block's until the loss."""
        block = self._block()
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
    """Block inputs in host memory from their use forward to their use backward, copied beside the computation.

    Checkpointing saves the inputs of a block, and nothing else, through the hooks that are set around it. `stream` does
    the copies (None: the caller's own, for tests). The last input kept is the first one needed, so when one is asked for
    the one before it is fetched ahead.
    """

    def __init__(self, stream: torch.cuda.Stream | None):
        self._stream = stream
        self._kept: list[_Kept] = []

    def hooks(self) -> AbstractContextManager:
        """Around the call of a checkpointed block."""
        return saved_tensors_hooks(self._put_away, self._fetch)

    def _put_away(self, tensor: Tensor) -> _Kept | Tensor:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return tensor
        kept = _Kept(tensor, self._stream)
        self._kept.append(kept)
        return kept

    def _fetch(self, kept: _Kept | Tensor) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        self._kept = [other for other in self._kept if other is not kept]
        tensor = kept.take()
        if self._kept:
            self._kept[-1].fetch()
        return tensor


class _Kept:
    """One tensor in host memory."""

    def __init__(self, tensor: Tensor, stream: torch.cuda.Stream | None):
        self._device, self._stream, self._back = tensor.device, stream, None
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=stream is not None)
        if stream is None:
            self._host.copy_(tensor)
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)

    def fetch(self) -> None:
        """Begins to copy it back."""
        if self._back is not None:
            return
        if self._stream is None:
            self._back = self._host.to(self._device, copy=True)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._back = self._host.to(self._device, non_blocking=True)

    def take(self) -> Tensor:
        """The tensor on its device, safe to use on the caller's stream."""
        self.fetch()
        back, self._back = self._back, None
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            back.record_stream(torch.cuda.current_stream())
        return back


def _changed(model: nn.Module) -> bool:
    return any(isinstance(module.__dict__.get("forward"), _Checkpointed) for module in model.modules())


