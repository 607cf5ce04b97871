"""Functions of torch that it does not promise to keep, and why each is used: the one file that imports them.

tests/model_ops/test_torch_internals.py fails where a release of torch changes what one of them does.

- FakeTensorMode, unset_fake_temporarily: a training step is traced on tensors without storage (model_ops.planning). The public
  meta device computes shapes as well, but forgets which device a tensor is for, and kernels are chosen by that.
- TorchDispatchMode, tree_leaves: every operation of such a step is seen, to know how long its tensors live. torch.fx traces
  what Python calls, not the operations of the backward pass.
- int8_matmul: torch has no public product of int8 matrices with an int32 sum.
- foreach_multiply, foreach_norm: one kernel for all gradients instead of one for each; torch's own optimizers use them.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["FakeTensorMode", "TorchDispatchMode", "foreach_multiply", "foreach_norm", "int8_matmul", "tree_leaves",
           "unset_fake_temporarily"]

int8_matmul = torch._int_mm
foreach_multiply = torch._foreach_mul_
foreach_norm = torch._foreach_norm
