"""RMSNorm, an addition before it, gated activations and rotary positions of an accelerator's rows, in one pass each.

    summed, output, scales = norm(x, added, weight, epsilon, offset, rounded=True, dtype=torch.bfloat16)
    x_gradient, weight_gradient = norm_gradient(gradient, carried, x, weight, scales, offset, weight_wanted=True)
    output = gated(gate, up, activation)                              # activation = fused_rows.activation_of(module)
    gate_gradient, up_gradient, output = gated_gradient(gradient, gate, up, activation, again=False)
    output = rotated(x, cos, sin)                                     # rotated(gradient, cos, sin, -1.0): its gradient

The kernels (`triton_rows`) are taken where Triton is installed and where they give, at the first use on a device, the numbers
of plain torch (`takes`); elsewhere callers compute with torch's own operations. On fake tensors, by which the planner counts
memory, results are allocated and nothing is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from model_ops.tensors.fused_rows import DTYPES, SILU, Activation
from model_ops.tensors.torch_internals import FakeTensor, device_kind

WIDEST = 16_384
"""Widest row of a norm; one program holds a row."""
NUMBERS_AT_ONCE = 1_024
"""Numbers of a program, where rows do not matter or are narrow."""
PROGRAMS = 1_024
"""Programs that share the sum of a norm weight's gradient."""
NEAR = 2e-2
"""Largest difference from plain torch, relative to the norm, at which a kernel is taken: bfloat16 differs by 4e-3."""


def takes(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: plain, float32 or bfloat16, on a CUDA device where they gave torch's numbers."""
    plain = all(
        type(one) in (Tensor, nn.Parameter, FakeTensor) and device_kind(one) == "cuda" and one.dtype in DTYPES
        for one in tensors
    )
    if not plain or torch.compiler.is_compiling() or tensors[0].numel() == 0:
        return False
    return isinstance(tensors[0], FakeTensor) or agrees(tensors[0].device)


def norm(
    x: Float[Tensor, "*rows width"],
    added: Float[Tensor, "*rows width"] | None,
    weight: Float[Tensor, " width"],
    epsilon: float,
    offset: float,
    rounded: bool,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, "*rows width"], Float32[Tensor, "*rows 1"]]:
    """(x + added, or x; (offset + weight) * sum / rms of the sum in `dtype`; 1 / rms). rounded: the normed values are rounded
    to x's dtype before the weight's product."""
    x, width = x.contiguous(), x.shape[-1]
    summed = x if added is None else torch.empty_like(x)
    output, scales = torch.empty_like(x, dtype=dtype), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    at_once, block = _tile(width)
    given = x if added is None else added.contiguous()
    options = {"ADDS": added is not None, "ROUNDED": rounded, "ROWS": at_once, "BLOCK": block}
    rows, grid = scales.numel(), (-(-scales.numel() // at_once),)
    _launch("norm_rows", grid, x, given, weight, summed, output, scales, rows, width, epsilon, offset, **options)
    return summed, output, scales


def norm_gradient(
    gradient: Float[Tensor, "*rows width"],
    carried: Float[Tensor, "*rows width"] | None,
    x: Float[Tensor, "*rows width"],
    weight: Float[Tensor, " width"],
    scales: Float32[Tensor, "*rows 1"],
    offset: float,
    weight_wanted: bool,
) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, " width"] | None]:
    """Gradients of the sum, plus `carried`, in x's dtype, and of the weight."""
    width, rows = x.shape[-1], scales.numel()
    at_once, block = _tile(width)
    programs = min(-(-rows // at_once), PROGRAMS)
    x_gradient = torch.empty_like(x)
    sums = x.new_empty(programs if weight_wanted else 0, width, dtype=torch.float32)
    given = gradient if carried is None else carried.contiguous()
    options = {"CARRIES": carried is not None, "WEIGHT": weight_wanted, "ROWS": at_once, "BLOCK": block}
    _launch(
        "norm_gradient_rows",
        (programs,),
        gradient.contiguous(),
        given,
        x,
        weight,
        scales,
        x_gradient,
        sums,
        rows,
        width,
        offset,
        **options,
    )
    return x_gradient, sums.sum(0).to(weight.dtype) if weight_wanted else None


def gated(gate: Float[Tensor, "*rows width"], up: Float[Tensor, "*rows width"], activation: Activation) -> Tensor:
    """act(gate) * up, in the dtype of gate."""
    gate, up = gate.contiguous(), up.contiguous()
    output, numbers = torch.empty_like(gate), gate.numel()
    _launch("gated_rows", _parts(numbers), gate, up, output, numbers, *map(float, activation), BLOCK=NUMBERS_AT_ONCE)
    return output


def gated_gradient(
    gradient: Float[Tensor, "*rows width"],
    gate: Float[Tensor, "*rows width"],
    up: Float[Tensor, "*rows width"],
    activation: Activation,
    again: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of gate and up, and act(gate) * up if it is wanted `again`."""
    given = [tensor.contiguous() for tensor in (gradient, gate, up)]
    made = [torch.empty_like(given[1]) for _ in range(2 + again)]
    numbers, slopes = gate.numel(), map(float, activation)
    options = {"AGAIN": again, "BLOCK": NUMBERS_AT_ONCE}
    _launch("gated_gradient_rows", _parts(numbers), *given, *made[:2], made[-1], numbers, *slopes, **options)
    return made[0], made[1], made[2] if again else None


def rotated(
    x: Float[Tensor, "tokens heads head_dim"],
    cos: Float[Tensor, "tokens head_dim"],
    sin: Float[Tensor, "tokens head_dim"],
    sign: float = 1.0,
) -> Float[Tensor, "tokens heads head_dim"]:
    """Rotary positions in the convention of Llama (rotate_half), in x's dtype. The halves of cos and sin are equal."""
    x = x.contiguous()
    (tokens, heads, width), output = x.shape, torch.empty_like(x)
    block = _power(width // 2)
    at_once = max(1, min(_power(heads), NUMBERS_AT_ONCE // block))
    options = {"HEADS": at_once, "BLOCK": block}
    given = (x, cos.contiguous(), sin.contiguous(), output, heads, width // 2, sign)
    _launch("rotated_rows", (tokens, -(-heads // at_once)), *given, **options)
    return output


@lru_cache(maxsize=16)
def agrees(device: torch.device) -> bool:
    """Whether the kernels compile for this device and give the numbers of plain torch, in both dtypes. Tried once."""
    if find_spec("triton") is None:
        return False
    return near_twins("Triton's kernels", device, lambda: [pair for dtype in DTYPES for pair in _pairs(device, dtype)])


def near_twins(what: str, device: torch.device, pairs: Callable[[], list[tuple[list[Tensor], list[Tensor]]]]) -> bool:
    """Whether kernels run on this device and give what plain torch gives; else a warning says why they are left out.

    pairs: computes (what kernels find, what their plain twins find)."""
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            furthest = max(_difference(pair) for pair in pairs())
    except Exception as error:  # a compiler or a driver may fail in any way, and plain torch computes the same
        warnings.warn(f"{what} are left out on {device}: {type(error).__name__}: {error}", stacklevel=2)
        return False
    if furthest > NEAR:
        warnings.warn(f"{what} are left out on {device}: they differ from plain torch by {furthest:.1e}", stacklevel=2)
    return furthest <= NEAR


def _pairs(device: torch.device, dtype: torch.dtype) -> list[tuple[list[Tensor], list[Tensor]]]:
    """What each kernel finds for some rows, and what torch does."""
    generator = torch.Generator(device).manual_seed(0)
    x, added, gradient, carried = torch.randn(4, 37, 96, device=device, generator=generator).to(dtype).unbind()
    weight = torch.randn(96, device=device, generator=generator).to(dtype)
    summed, output, scales = norm(x, added, weight, 1e-5, 0.0, True, dtype)
    found = [*norm_gradient(gradient, carried, summed, weight, scales, 0.0, True)]
    with torch.enable_grad():
        leaves = [(x + added).detach().requires_grad_(), weight.clone().requires_grad_()]
        plain = F.rms_norm(leaves[0], (96,), leaves[1], 1e-5)
        slopes = torch.autograd.grad(plain, leaves, gradient)
        gate, up = x.clone().requires_grad_(), added.clone().requires_grad_()
        product = F.silu(gate) * up
        halves = torch.autograd.grad(product, (gate, up), gradient)
    angles = torch.randn(37, 8, device=device, generator=generator)
    cos, sin = (torch.cat((part, part), 1).to(dtype) for part in (angles.cos(), angles.sin()))
    heads = x.view(37, 6, 16)
    turned = heads * cos[:, None] + torch.cat((-heads[..., 8:], heads[..., :8]), -1) * sin[:, None]
    return [
        ([summed, output, *found], [leaves[0], plain, slopes[0] + carried, slopes[1]]),
        ([gated(x, added, SILU), *gated_gradient(gradient, x, added, SILU, True)], [product, *halves, product]),
        ([rotated(heads, cos, sin), rotated(rotated(heads, cos, sin), cos, sin, -1.0)], [turned, heads]),
    ]


def _difference(pair: tuple[list[Tensor], list[Tensor]]) -> float:
    found = [(one.float() - other.float()).norm() / other.float().norm() for one, other in zip(*pair, strict=True)]
    return float(torch.stack(found).detach().nan_to_num(nan=float("inf")).max())


def _tile(width: int) -> tuple[int, int]:
    """(rows, padded width) of a program."""
    block = _power(width)
    return max(1, NUMBERS_AT_ONCE // block), block


def _power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _parts(numbers: int) -> tuple[int]:
    return (-(-numbers // NUMBERS_AT_ONCE),)


def _launch(name: str, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Starts a kernel on the device of its tensors; nothing is computed on fake ones."""
    if isinstance(given[0], FakeTensor):
        return
    from model_ops.tensors import triton_rows

    kernel: Callable = getattr(triton_rows, name)[grid]
    warps = min(16, max(4, options["BLOCK"] * options.get("ROWS", options.get("HEADS", 1)) // 512))
    if given[0].is_cuda:
        with torch.cuda.device(given[0].device):
            kernel(*given, **options, num_warps=warps)
    else:  # Triton's interpreter
        kernel(*given, **options)
