"""The head's loss three ways on this machine: this project's chunks, torch's own, and the plain formula with all logits.

    python -m benchmarks.loss_head [--quick]     # about two minutes on 2 cores; --quick: small vocabularies

Seconds of one forward and backward pass in bfloat16 (the best of five), the loss's relative error against float64, and the
memory that grows meanwhile, each in a process of its own. model_ops.losses.loss_heads takes on a CPU what is fastest here.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.one_case import one_case
from benchmarks.record import record

SHAPES = [(8_192, 256, 2_700), (32_000, 1_024, 1_024), (151_936, 512, 1_400)]
QUICK = [(8_192, 256, 1_024)]
THREADS = 2


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
    record("loss_head", {
        "over_torch": min(round(row["torch"]["seconds"] / row["chunked"]["seconds"], 3) for row in rows),
        "over_plain": min(round(row["plain"]["seconds"] / row["chunked"]["seconds"], 3) for row in rows), "rows": rows,
    }, keep=not given.quick)


def _case(name: str, vocab: int, width: int, tokens: int) -> dict[str, float]:
    import resource

    import torch
    from torch.nn import functional as F

    from model_ops.heap import keep_freed_memory
    from model_ops.losses.loss_heads import KERNELS, TIMES, error_of, loss_and_gradients, seconds_of

    keep_freed_memory()
    torch.set_num_threads(THREADS)

    def plain(hidden, weight, labels, weights):
        return (F.cross_entropy((hidden @ weight.T).float(), labels, reduction="none") * weights).sum()

    kernel = {**KERNELS, "plain": plain}[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(tokens, width, generator=generator), torch.randn(vocab, width, generator=generator) * width**-0.5,
             torch.randint(vocab, (tokens,), generator=generator), torch.rand(tokens, generator=generator)]
    loss_and_gradients(kernel, [given[0][:8], given[1], given[2][:8], given[3][:8]], torch.bfloat16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = min(seconds_of(kernel, given, torch.bfloat16) for _ in range(TIMES))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    error = error_of(kernel, given, torch.bfloat16)
    return {"seconds": round(seconds, 4), "grown_mb": round(grown_mb), "error": float(f"{error:.2e}")}


if __name__ == "__main__":
    main()
