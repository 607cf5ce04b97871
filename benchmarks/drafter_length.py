"""Memory of an EAGLE-3 training step by the length of its rows.

    python -m benchmarks.drafter_length           # rows of 4,096, 8,192 and 16,384 tokens, under a minute on 2 cores
    python -m benchmarks.drafter_length --quick   # rows of 512, 1,024 and 2,048 tokens, a smaller model, under a minute

The target is Qwen3-shaped with random weights and 32,768 positions (hidden 256, 10 layers, 4 heads, 2 KV heads of 64, MLP
768, vocabulary 8,192: the house model's shape); the drafter is EAGLE-3 with a draft vocabulary of 2,048, 4 steps of the
training-time test, LK-lambda, bfloat16 products. A row is one document: a quarter of it prompt, the rest supervised. Its
hidden states are random: they cost what the target's own would.

Each length runs in a process of its own. `step_mb` is the peak of the process's resident memory during a training step
(forward, backward, clipping, AdamW) less what it was before it, model, optimizer and the row's states included; a first
step on a short row has made kernels and moments. `exponent` is the slope of log(step_mb) over log(tokens): 1 is linear, 2
what a materialised score matrix would need (`scores_mb`: that of one draft step, in float32). The plot is
benchmarks/results/drafter_length.png.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from typing import Any

import psutil
import torch

from benchmarks.one_case import one_case
from benchmarks.record import RESULTS, record
from model_ops.machine.process import give_back_memory, keep_freed_memory
from model_ops.parallel.world import World
from model_ops.speculators.decoder_config import Eagle3Config
from model_ops.speculators.eagle3.network import Eagle3
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow
from model_ops.speculators.states.speculator_batches import make_batch
from model_ops.tensors.memory_efficient_layers import use_memory_efficient_layers
from model_ops.training.optimizers import build_optimizer, reserve_state
from model_ops.training.step import optimizer_step

LENGTHS, QUICK_LENGTHS = (4_096, 8_192, 16_384), (512, 1_024, 2_048)
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8_192,
    "max_position_embeddings": 32_768,
}
QUICK_SHAPE = {**SHAPE, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "head_dim": 16}
DRAFT_VOCAB, STEPS, PROMPT_SHARE = 2_048, 4, 0.25
SHORT = 256
"""Tokens of the row that warms up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rows, a small model; nothing is recorded")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(**json.loads(given.case))))
        return
    rows = []
    for tokens in QUICK_LENGTHS if given.quick else LENGTHS:
        rows.append(one_case("drafter_length", "--case", {"tokens": tokens, "quick": given.quick}))
        print(json.dumps(rows[-1]), flush=True)
    figures = {
        "exponent": round(slope([row["tokens"] for row in rows], [row["step_mb"] for row in rows]), 3),
        "seconds_exponent": round(slope([row["tokens"] for row in rows], [row["seconds"] for row in rows]), 3),
        "rows": rows,
    }
    if not given.quick:
        plot(rows, figures["exponent"])
    record("drafter_length", figures, keep=not given.quick)


def measure(tokens: int, quick: bool) -> dict[str, Any]:
    """One training step on one row of `tokens` tokens."""
    from transformers import Qwen3Config

    keep_freed_memory()
    torch.manual_seed(0)
    target = Qwen3Config(**(QUICK_SHAPE if quick else SHAPE))
    model = Eagle3(Eagle3Config.for_target(target, DRAFT_VOCAB))
    ids = torch.randperm(target.vocab_size)[:DRAFT_VOCAB].sort().values
    model.set_draft_vocabulary(ids)
    head = torch.randn(target.vocab_size, target.hidden_size) * 0.1
    model.warm_start(head, head, torch.ones(target.hidden_size))
    use_memory_efficient_layers(model)
    settings = speculator_settings(ttt_steps=STEPS).resolved()
    loss = SpeculatorLoss(Teacher(head.bfloat16(), ids), settings)
    optimizer = build_optimizer(model, settings)
    reserve_state(optimizer)
    world = World.alone(torch.device("cpu"))

    def step(length: int, name: str) -> tuple[float, float, int]:
        row = AnswerRow(name, torch.randint(3, target.vocab_size, (length,)).tolist(), int(length * PROMPT_SHARE))
        batch = make_batch([row], _RandomStates(row, target.hidden_size), [0])
        give_back_memory()
        with _PeakMemory() as memory:
            began = time.perf_counter()
            optimizer_step(model, [batch], loss, optimizer, settings, world, name)
            seconds = time.perf_counter() - began
        return memory.grown_mb, seconds, row.window

    step(SHORT, "warm-up")
    grown_mb, seconds, window = step(tokens, f"{tokens} tokens")
    return {
        "tokens": tokens,
        "supervised": window,
        "step_mb": round(grown_mb, 1),
        "scores_mb": round(window * tokens * target.num_attention_heads * 4 / 2**20),
        "seconds": round(seconds, 2),
        "tokens_per_s": round(tokens / seconds),
        "threads": torch.get_num_threads(),
    }


class _RandomStates:
    """In place of model_ops.speculators.states.hidden_states.HiddenStates: one row's states, drawn."""

    def __init__(self, row: AnswerRow, hidden: int):
        self.states = torch.randn(len(row.ids), 3 * hidden).bfloat16(), torch.randn(row.window + 1, hidden).bfloat16()

    def of(self, members: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.states for _ in members]


class _PeakMemory:
    """Peak resident memory of this process within a block, beyond what it was at its start; sampled every 2 ms."""

    def __enter__(self) -> _PeakMemory:
        self.process = psutil.Process()
        self.start = self.peak = self.process.memory_info().rss
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.wait(0.002):
            self.peak = max(self.peak, self.process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.peak = max(self.peak, self.process.memory_info().rss)
        self.grown_mb = (self.peak - self.start) / 2**20


def slope(lengths: list[float], values: list[float]) -> float:
    """Of the least-squares line through (log length, log value)."""
    x, y = [math.log(length) for length in lengths], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def plot(rows: list[dict[str, Any]], exponent: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tokens, measured = [row["tokens"] for row in rows], [row["step_mb"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(tokens, measured, "o-", base=2, label=f"measured, exponent {exponent:.2f}")
    axes.loglog(tokens, [measured[0] * length / tokens[0] for length in tokens], ":", base=2, label="linear")
    axes.loglog(tokens, [measured[0] * (length / tokens[0]) ** 2 for length in tokens], "--", base=2, label="quadratic")
    axes.set(
        xlabel="tokens of a row", ylabel="MiB of a training step beyond the model's own", title="EAGLE-3, training-time test"
    )
    axes.set_xticks(tokens, [f"{length:,}" for length in tokens])
    axes.set_yticks(measured, [f"{value:,.0f}" for value in measured])
    axes.minorticks_off()
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "drafter_length.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
