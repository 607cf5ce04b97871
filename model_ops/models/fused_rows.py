"""RMSNorm and gated activations of a CPU's rows in one pass, forward and backward, over torch's number of threads.

    output, scales = norm(x, weight, epsilon, dtype)
    x_gradient, weight_gradient = norm_gradient(gradient, x, weight, scales)
    output = gated(gate, up, activation)                       # activation = activation_of(module)
    gate_gradient, up_gradient, output = gated_gradient(gradient, gate, up, activation)

For float32 and bfloat16 tensors on a CPU (`takes`); other tensors take torch's own operations. Results are those of float32
arithmetic, rounded once. Rows are split evenly over the threads, so a result depends on their number only by the order in which
the weight's gradient is summed, as torch's does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

FEWEST_NUMBERS = 1 << 15
"""Smaller tensors take torch's operations: a call of a kernel costs about as much as several of those."""

DTYPES = (torch.float32, torch.bfloat16)


class Activation(NamedTuple):
    """x * sigmoid(slope * (x + cube * x^3))."""

    slope: np.float32
    cube: np.float32


SILU = Activation(np.float32(1), np.float32(0))
GELU_TANH = Activation(np.float32(math.sqrt(8 / math.pi)), np.float32(0.044715))


def activation_of(module: nn.Module | None) -> Activation | None:
    """The activation in the kernels' form; None for one that has no such form."""
    name = type(module).__name__
    if isinstance(module, nn.SiLU) or name == "SiLUActivation":
        return SILU
    return GELU_TANH if name in ("GELUTanh", "PytorchGELUTanh") else None


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: large enough, on a CPU, plain, in float32 or bfloat16."""
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.dtype in DTYPES
                for tensor in tensors)
    return plain and tensors[0].ndim > 1 and tensors[0].numel() >= FEWEST_NUMBERS and not torch.compiler.is_compiling()


def norm(x: Float[Tensor, "*rows width"], weight: Float32[Tensor, " width"], epsilon: float,
         dtype: torch.dtype) -> tuple[Float[Tensor, "*rows width"], Float32[Tensor, "*rows 1"]]:
    """weight * x * scale in `dtype` (float32 or bfloat16), and scale = 1 / sqrt(mean(x^2) + epsilon) of each row."""
    from model_ops.models.row_kernels import norm_rows

    output = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32)
    _over_rows(norm_rows, _rows(x), weight.numpy(), np.float32(epsilon), _rows(output), scales.numpy().reshape(-1))
    return output, scales


def norm_gradient(gradient: Float[Tensor, "*rows width"], x: Float[Tensor, "*rows width"], weight: Float32[Tensor, " width"],
                  scales: Float32[Tensor, "*rows 1"]) -> tuple[Float[Tensor, "*rows width"], Float32[Tensor, " width"]]:
    """Gradients of x, in its dtype, and of the weight."""
    from model_ops.models.row_kernels import norm_gradient_rows

    x_gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    sums = torch.zeros(torch.get_num_threads(), x.shape[-1])

    def of_a_part(first: int, last: int, part: int, *arrays: object) -> None:
        norm_gradient_rows(first, last, *arrays, sums[part].numpy())

    _over_rows(of_a_part, _rows(gradient), _rows(x), weight.numpy(), scales.numpy().reshape(-1), _rows(x_gradient),
               with_part=True)
    return x_gradient, sums.sum(0)


def gated(gate: Float[Tensor, "*rows width"], up: Float[Tensor, "*rows width"],
          activation: Activation) -> Float[Tensor, "*rows width"]:
    """act(gate) * up."""
    from model_ops.models.row_kernels import gated_rows

    output = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _over_rows(gated_rows, _rows(gate), _rows(up), *activation, _rows(output))
    return output


def gated_gradient(gradient: Float[Tensor, "*rows width"], gate: Float[Tensor, "*rows width"], up: Float[Tensor, "*rows width"],
                   activation: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gate and up, and act(gate) * up again, all in the dtype of gate."""
    from model_ops.models.row_kernels import gated_gradient_rows

    made = [torch.empty_like(gate, memory_format=torch.contiguous_format) for _ in range(3)]
    _over_rows(gated_gradient_rows, _rows(gradient), _rows(gate), _rows(up), *activation, *(_rows(one) for one in made))
    return tuple(made)


def _rows(tensor: Tensor) -> np.ndarray:
    """The tensor as [rows, width] in numpy; bfloat16 as uint16."""
    flat = tensor.detach().flatten(0, -2)
    flat = flat if flat.is_contiguous() else flat.contiguous()
    return flat.view(torch.uint16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()


def _over_rows(kernel: Callable, rows: np.ndarray, *others: object, with_part: bool = False) -> None:
    """kernel(first, last, rows, *others) for each thread's share of the rows."""
    parts = torch.get_num_threads()
    ends = [len(rows) * part // parts for part in range(parts + 1)]
    calls = [(ends[part], ends[part + 1], *([part] if with_part else []), rows, *others) for part in range(parts)]
    waiting = [_threads(parts - 1).submit(kernel, *call) for call in calls[1:]]
    kernel(*calls[0])
    for one in waiting:
        one.result()


@lru_cache(maxsize=4)
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, number), thread_name_prefix="rows")
