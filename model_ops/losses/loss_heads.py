"""Chooses the kernel for cross-entropy at the head (this project's, torch's or Liger's) by measuring them on the device.

    kernel = chosen_kernel("auto", model, precision, work)     # None: this project's chunked head
    next_token_loss(model, batch, kernel=kernel)

A candidate is tried on random numbers with the run's widths. It is refused if the error of its loss or gradients against the
plain formula in float64 exceeds three times the error of the chunked head, and chosen only if it is at least 5 % faster. On a
CPU nothing is measured, because the chunked head is the fastest at every shape (benchmarks/loss_head.py). The choice is saved
in <work>/loss_head.json, so that a continued run computes in the same way. Heads with bias, scale, soft cap or z-loss, and
sharded heads, always use the chunked head.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from model_ops.atomic_files import write_json
from model_ops.errors import ModelError
from model_ops.losses.chunked_head import Head, chunked_head
from model_ops.losses.linear_cross_entropy import HeadLoss, cross_entropy_rows
from model_ops.precision import products_dtype

Kernel = Literal["chunked", "torch", "liger"]

CHECKED_ROWS, TIMED_ROWS, TIMES = 64, 1_024, 5
FASTER_BY, ERROR_ALLOWED = 0.95, 3.0


@dataclass(frozen=True)
class Measured:
    """Seconds of one forward and backward pass by kernel, and reasons why kernels were refused."""

    kernel: Kernel
    seconds: dict[str, float]
    refused: dict[str, str]


def chosen_kernel(wanted: str, model: nn.Module, precision: str, work: Path, z_loss: float = 0.0) -> HeadLoss | None:
    """The kernel for `next_token_loss`; None: the chunked head. wanted: name of a kernel, or "auto".

    Raises ModelError if the named kernel is not installed or cannot compute this model's head.
    """
    head = Head.of(model)
    plain = head is not None and head.bias is None and head.scale == 1.0 and head.soft_cap is None and z_loss == 0.0
    if wanted == "chunked" or (wanted == "auto" and (not plain or isinstance(head.weight, DTensor))):
        return None
    if wanted != "auto":
        if wanted not in available():
            raise ModelError(f"loss_head {wanted} is not installed; choose one of {', '.join(available())}, or leave it out")
        if not plain or isinstance(head.weight, DTensor):
            raise ModelError(f"loss_head {wanted} has no bias, scale, soft cap, z-loss or sharded head; leave it out")
        return KERNELS[wanted]
    kept = work / "loss_head.json"
    if kept.exists():
        name = json.loads(kept.read_text())["kernel"]
    else:
        found = _decided(head, precision)
        write_json(kept, asdict(found))
        name = found.kernel
    return None if name == "chunked" else KERNELS[name]


def available() -> list[Kernel]:
    """The kernels that are installed."""
    return ["chunked", "torch", "liger"] if importlib.util.find_spec("liger_kernel") else ["chunked", "torch"]


def measure(vocab: int, width: int, device: torch.device, dtype: torch.dtype, rows: int = TIMED_ROWS) -> Measured:
    """Measures every kernel with this shape. dtype: of products."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocab, width, generator=generator) * width**-0.5
    labels, weights = torch.randint(vocab, (rows,), generator=generator), torch.rand(rows, generator=generator)
    given = [part.to(device) for part in (hidden, weight, labels, weights)]
    seconds, refused = {}, {}
    allowed = ERROR_ALLOWED * error_of(KERNELS["chunked"], given, dtype) + 1e-7
    for name in available():
        try:
            error = error_of(KERNELS[name], given, dtype)
            if error > allowed:
                refused[name] = f"its error against the plain formula is {error:.1e}, ours {allowed / ERROR_ALLOWED:.1e}"
                continue
            seconds[name] = min(seconds_of(KERNELS[name], given, dtype) for _ in range(TIMES))
        except (RuntimeError, ImportError, NotImplementedError, TypeError) as problem:  # a library that does not run here
            refused[name] = f"{type(problem).__name__} where it was tried"
    fastest = min(seconds, key=seconds.__getitem__)
    return Measured(fastest if seconds[fastest] < FASTER_BY * seconds["chunked"] else "chunked", seconds, refused)


def _decided(head: Head, precision: str) -> Measured:
    device = head.weight.device
    if device.type == "cpu":
        return Measured("chunked", {}, {})
    vocab, width = head.weight.shape
    return measure(vocab, width, device, products_dtype(precision, device))


def _chunked(hidden: Tensor, weight: Tensor, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"]) -> Tensor:
    return chunked_head(hidden, Head(weight), cross_entropy_rows(labels, weights))[0]


def _torch(hidden: Tensor, weight: Tensor, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"]) -> Tensor:
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        losses = F.linear_cross_entropy(hidden.to(dtype), weight.to(dtype), labels, reduction="none",
                                        options=nn.LinearCrossEntropyOptions())
        return (losses.float() * weights).sum()


def _liger(hidden: Tensor, weight: Tensor, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"]) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        found = LigerFusedLinearCrossEntropyFunction.apply(
            hidden.to(dtype), weight.to(dtype), labels, None, None, -100, 0.0, 0.0, "none")
        losses = found[0] if isinstance(found, tuple) else found
        return (losses.float() * weights).sum()


KERNELS: dict[str, Callable[..., Tensor]] = {"chunked": _chunked, "torch": _torch, "liger": _liger}


def loss_and_gradients(kernel: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, gradient of hidden, gradient of weight)."""
    hidden, weight = given[0].detach().requires_grad_(True), given[1].detach().requires_grad_(True)
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = kernel(hidden, weight, *given[2:])
    return loss.detach(), *torch.autograd.grad(loss, [hidden, weight])


def error_of(kernel: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> float:
    """Largest relative error of loss and gradients, by their norms, on a few rows."""
    few = [given[0][:CHECKED_ROWS], given[1], *(part[:CHECKED_ROWS] for part in given[2:])]
    found = loss_and_gradients(kernel, few, dtype)
    exact = [part.cpu().double() if part.is_floating_point() else part.cpu() for part in few]
    hidden, weight = exact[0].requires_grad_(True), exact[1].requires_grad_(True)
    loss = (F.cross_entropy(hidden @ weight.T, exact[2], reduction="none") * exact[3]).sum()
    wanted = [loss.detach(), *torch.autograd.grad(loss, [hidden, weight])]
    return max(float((one.cpu().double() - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True))


def seconds_of(kernel: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> float:
    def wait() -> None:
        if given[0].device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    loss_and_gradients(kernel, given, dtype)
    wait()
    return time.perf_counter() - began
