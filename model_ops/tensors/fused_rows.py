"""RMSNorm, gated activations and cross-entropy of a CPU's float32 or bfloat16 rows in one pass (`takes`), as float32 arithmetic
rounded once. Rows are split over torch's threads, so a result depends on their number only by the order in which the weight's
gradient is summed."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from model_ops.tensors.torch_internals import FakeTensor, device_kind

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
    """Whether the kernels take these tensors: large enough, on a CPU, plain, in float32 or bfloat16. Fake tensors, by which the
    planner counts memory, are taken as the plain ones that they stand for."""
    plain = all(
        type(tensor) in (Tensor, nn.Parameter, FakeTensor) and device_kind(tensor) == "cpu" and tensor.dtype in DTYPES
        for tensor in tensors
    )
    return plain and tensors[0].ndim > 1 and tensors[0].numel() >= FEWEST_NUMBERS and not torch.compiler.is_compiling()


def norm(
    x: Float[Tensor, "*rows width"], weight: Float32[Tensor, " width"], epsilon: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "*rows width"], Float32[Tensor, "*rows 1"]]:
    """weight * x * scale in `dtype` (float32 or bfloat16), and scale = 1 / sqrt(mean(x^2) + epsilon) of each row."""
    from model_ops.tensors.row_kernels import norm_rows

    output = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32)
    _over_rows(norm_rows, x, _own(weight), np.float32(epsilon), output, scales.view(-1))
    return output, scales


def norm_gradient(
    gradient: Float[Tensor, "*rows width"],
    x: Float[Tensor, "*rows width"],
    weight: Float32[Tensor, " width"],
    scales: Float32[Tensor, "*rows 1"],
) -> tuple[Float[Tensor, "*rows width"], Float32[Tensor, " width"]]:
    """Gradients of x, in its dtype, and of the weight."""
    from model_ops.tensors.row_kernels import norm_gradient_rows

    x_gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    sums = torch.zeros(torch.get_num_threads(), x.shape[-1])
    _over_rows(norm_gradient_rows, gradient, x, _own(weight), scales.view(-1), x_gradient, of_parts=sums)
    return x_gradient, sums.sum(0)


def gated(
    gate: Float[Tensor, "*rows width"], up: Float[Tensor, "*rows width"], activation: Activation
) -> Float[Tensor, "*rows width"]:
    """act(gate) * up."""
    from model_ops.tensors.row_kernels import gated_rows

    output = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _over_rows(gated_rows, gate, up, *activation, output)
    return output


def gated_gradient(
    gradient: Float[Tensor, "*rows width"],
    gate: Float[Tensor, "*rows width"],
    up: Float[Tensor, "*rows width"],
    activation: Activation,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gate and up, and act(gate) * up again, all in the dtype of gate."""
    from model_ops.tensors.row_kernels import gated_gradient_rows

    results = [torch.empty_like(gate, memory_format=torch.contiguous_format) for _ in range(3)]
    _over_rows(gated_gradient_rows, gradient, gate, up, *activation, *results)
    return tuple(results)


def cross_entropy(
    logits: Float[Tensor, "rows vocab"],
    labels: Int64[Tensor, " rows"],
    weights: Float32[Tensor, " rows"],
    z_loss: float,
    with_gradient: bool,
) -> tuple[Float32[Tensor, " rows"], Float32[Tensor, " rows"]]:
    """Losses (cross-entropy + z_loss * logsumexp^2) * weight, and 1 where the label has the highest logit, else 0. The logits
    (contiguous) are overwritten with the gradient of the sum of losses if it is wanted. Raises IndexError for a label outside
    the vocabulary."""
    from model_ops.tensors.row_kernels import cross_entropy_rows

    if not isinstance(labels, FakeTensor) and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise IndexError(f"a label is outside the vocabulary of {logits.shape[1]}")
    losses, hits = torch.empty(2, len(logits))
    _over_rows(cross_entropy_rows, logits, labels, weights, np.float32(z_loss), with_gradient, losses, hits)
    return losses, hits


def _over_rows(kernel: Callable, rows: Tensor, *others: object, of_parts: Tensor | None = None) -> None:
    """kernel(first, last, rows, *others) for each thread's share of the rows; of_parts: [threads, width], a row for each.
    Nothing is computed on fake tensors."""
    if isinstance(rows, FakeTensor):
        return
    arrays = [_array(one) if isinstance(one, Tensor) else one for one in (rows, *others)]
    parts = torch.get_num_threads()
    ends = [len(arrays[0]) * part // parts for part in range(parts + 1)]
    calls = [
        (ends[part], ends[part + 1], *arrays, *([] if of_parts is None else [of_parts[part].numpy()])) for part in range(parts)
    ]
    waiting = [_threads(parts - 1).submit(kernel, *call) for call in calls[1:]]
    kernel(*calls[0])
    for one in waiting:
        one.result()


def _own(weight: Tensor) -> Tensor:
    """A copy: memory that numpy has seen cannot be freed by resizing, which FSDP does with gathered weights."""
    return weight if isinstance(weight, FakeTensor) else weight.detach().clone()


def _array(tensor: Tensor) -> np.ndarray:
    """The tensor as [rows, width] in numpy, or as the vector that it is; bfloat16 as uint16."""
    flat = tensor.detach() if tensor.ndim == 1 else tensor.detach().flatten(0, -2)
    flat = flat if flat.is_contiguous() else flat.contiguous()
    return flat.view(torch.uint16).numpy() if flat.dtype == torch.bfloat16 else flat.numpy()


@lru_cache(maxsize=4)
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, number), thread_name_prefix="rows")
