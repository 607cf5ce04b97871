"""Private functions and attributes of torch, with the reason for each. No other file uses any.

tests/model_ops/test_torch_internals.py fails if a release of torch changes one of them.

- FakeTensor, FakeTensorMode, unset_fake_temporarily: model_ops.planning traces a training step on tensors without storage. The
  public meta device computes shapes too, but loses the intended device, which decides which kernels run.
- TorchDispatchMode, tree_leaves: follow every operation of a traced step to know how long its tensors live. torch.fx records
  calls in Python, not the operations of the backward pass.
- int8_matmul: torch has no public product of int8 matrices with int32 accumulation. CPU and CUDA have kernels.
- scaled_matmul: the public torch.nn.functional.scaled_mm calls the same kernel, but torch 2.9 and earlier lack it.
- foreach_multiply, foreach_norm: one kernel for all gradients instead of one for each; torch's own optimizers use them.
- shallow_copy: nn.Module keeps parameters and submodules in dicts of its own. torch.func.functional_call replaces parameters
  too, but calls the module with its hooks and its replaced forward, which is what a copy is made to avoid.
- has_forward_hooks: hooks can be registered publicly, but not listed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils import _python_dispatch, _pytree

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
TorchDispatchMode = _python_dispatch.TorchDispatchMode
tree_leaves = _pytree.tree_leaves
unset_fake_temporarily = fake_tensor.unset_fake_temporarily
int8_matmul = torch._int_mm
scaled_matmul = torch._scaled_mm
foreach_multiply = torch._foreach_mul_
foreach_norm = torch._foreach_norm


_stands_for: list[str] = ["cpu"]


def device_kind(tensor: Tensor) -> str:
    """The type of a tensor's device; of a fake tensor, of the device that it stands for. torch without CUDA cannot fill fake
    tensors of a CUDA device, so those of a plan are of a CPU and stand for what is planned."""
    return _stands_for[-1] if isinstance(tensor, FakeTensor) else tensor.device.type


@contextmanager
def standing_for(device: str) -> Iterator[None]:
    """Fake tensors stand for this type of device inside the block."""
    _stands_for.append(device)
    try:
        yield
    finally:
        _stands_for.pop()


def shallow_copy(
    module: nn.Module, parameters: Mapping[str, Tensor | None] | None = None, modules: Mapping[str, nn.Module] | None = None
) -> Any:
    """A module of the same class that shares everything with `module`, except for the given parameters and submodules.
    parameters: name -> any tensor, which need not be an nn.Parameter; None is a parameter that the module lacks. A forward that
    was set on the module itself is left out, so a call runs the forward of the class. Hooks are shared."""
    copied = object.__new__(type(module))
    held = module.__dict__
    vars(copied).update(
        {
            **held,
            "_parameters": {**held["_parameters"], **(parameters or {})},
            "_modules": {**held["_modules"], **(modules or {})},
        }
    )
    vars(copied).pop("forward", None)
    return copied


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks before or after its forward. Global hooks do not count."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
