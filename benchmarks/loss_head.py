"""The head's loss three ways on this machine: this project's chunks, torch's own, and the plain formula with all logits.

    python -m benchmarks.loss_head [--quick]     # about two minutes on 2 cores; --quick: small vocabularies

Seconds of one forward and backward pass in bfloat16 (the best of five), the loss's relative error against float64, and the
memory that grows meanwhile, each in a process of its own.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.one_case import one_case
from benchmarks.record import record
from model_ops.losses.head import Head, chunked_head
from model_ops.losses.linear_cross_entropy import cross_entropy_rows
from model_ops.machine.process import keep_freed_memory

SHAPES = [(8_192, 256, 2_700), (32_000, 1_024, 1_024), (151_936, 512, 1_400)]
QUICK = [(8_192, 256, 1_024)]
THREADS, CHECKED_ROWS, TIMES = 2, 64, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(_case(*json.loads(given.case))))
        return
    rows = []
    for vocab, width, tokens in QUICK if given.quick else SHAPES:
        row = {"vocab": vocab, "hidden": width, "rows": tokens}
        for name in ("chunked", "torch", "plain"):
            row[name] = one_case("loss_head", "--case", [name, vocab, width, tokens])
        rows.append(row)
        print(json.dumps(row), flush=True)
    record(
        "loss_head",
        {
            "over_torch": min(round(row["torch"]["seconds"] / row["chunked"]["seconds"], 3) for row in rows),
            "over_plain": min(round(row["plain"]["seconds"] / row["chunked"]["seconds"], 3) for row in rows),
            "rows": rows,
        },
        keep=not given.quick,
    )


def _case(name: str, vocab: int, width: int, tokens: int) -> dict[str, float]:
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    kernel = KERNELS[name]
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(tokens, width, generator=generator),
        torch.randn(vocab, width, generator=generator) * width**-0.5,
        torch.randint(vocab, (tokens,), generator=generator),
        torch.rand(tokens, generator=generator),
    ]
    loss_and_gradients(kernel, [given[0][:8], given[1], given[2][:8], given[3][:8]], torch.bfloat16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = min(seconds_of(kernel, given, torch.bfloat16) for _ in range(TIMES))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    error = error_of(kernel, given, torch.bfloat16)
    return {"seconds": round(seconds, 4), "grown_mb": round(grown_mb), "error": float(f"{error:.2e}")}


def _chunked(hidden: Tensor, weight: Tensor, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"]) -> Tensor:
    return chunked_head(hidden, Head(weight), cross_entropy_rows(labels, weights))[0]


def _torch(hidden: Tensor, weight: Tensor, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"]) -> Tensor:
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        losses = F.linear_cross_entropy(
            hidden.to(dtype), weight.to(dtype), labels, reduction="none", options=nn.LinearCrossEntropyOptions()
        )
        return (losses.float() * weights).sum()


def _plain(hidden: Tensor, weight: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return (F.cross_entropy((hidden @ weight.T).float(), labels, reduction="none") * weights).sum()


KERNELS: dict[str, Callable[..., Tensor]] = {"chunked": _chunked, "torch": _torch, "plain": _plain}


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
    began = time.perf_counter()
    loss_and_gradients(kernel, given, dtype)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
