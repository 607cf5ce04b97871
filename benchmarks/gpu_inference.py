"""Parts of benchmarks.gpu that run a target: packed attention, generation, int8, held-out loss, a drafter's training steps."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_models import config_for, documents, finish, peak_gib, prompts, random_model, seconds_of
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.runner import Runner, new_runner
from model_ops.documents.likelihood import held_out_loss, mean_loss
from model_ops.jobs.progress import Progress
from model_ops.models import attention as packed
from model_ops.models.model_directory import training_device
from model_ops.quantization.model_layers import block_layers
from model_ops.quantization.schemes.w8a8 import W8A8
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.losses.teacher import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, OnlineStates
from model_ops.speculators.states.speculator_batches import SpeculatorPlan
from model_ops.tensors.varlen_kernel import takes_varlen_kernel
from model_ops.training.trainer import train

BATCHES = (1, 64)
"""Rows that are decoded together."""


def attention() -> dict[str, Any]:
    """Forward and backward of packed attention in one layer: the kernel for variable lengths against documents gathered into
    groups."""
    where = training_device()
    on_gpu = where.type == "cuda"
    config, dtype = config_for(where), torch.bfloat16 if on_gpu else torch.float32
    rows = documents(24, *((64, 2_048) if on_gpu else (4, 64)), vocab=8)
    lengths = [len(row) for row in rows]
    generator = torch.Generator(where).manual_seed(0)
    streams = [
        torch.randn(1, sum(lengths), heads, config.head_dim, device=where, generator=generator)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for heads in (config.num_attention_heads, *2 * [config.num_key_value_heads])
    ]
    taken = takes_varlen_kernel(*(stream[0].transpose(0, 1) for stream in streams))
    if on_gpu and not taken:
        raise RuntimeError("torch refuses the flash attention kernel for these streams on this device")

    def step() -> torch.Tensor:
        output, _ = packed.packed_attention(torch.nn.Module(), *streams, document_lengths=lengths)
        torch.autograd.grad(output.float().square().sum(), streams)
        return output.detach().float()

    found, seconds = step(), seconds_of(step, where)
    packed.takes_varlen_kernel = lambda *_: False
    try:
        other, other_seconds = step(), seconds_of(step, where)
    finally:
        packed.takes_varlen_kernel = takes_varlen_kernel
    return {
        "tokens": sum(lengths),
        "documents": len(lengths),
        "kernel": taken,
        "milliseconds": round(1e3 * seconds, 3),
        "milliseconds_gathered": round(1e3 * other_seconds, 3),
        "times_as_fast": round(other_seconds / seconds, 3),
        "relative_difference": float((found - other).norm() / other.norm()),
    }


def generation() -> dict[str, Any]:
    """Tokens/s of sampled answers by the project's own decoder."""
    where = training_device()
    runner = new_runner(random_model(config_for(where), where, torch.bfloat16, "sdpa"))
    return {"layers": runner.config.num_hidden_layers, **_speeds(runner, 1.0, where), "peak_gib": peak_gib(where)}


def int8_decoding() -> dict[str, Any]:
    """Tokens/s of greedy answers of one target in bfloat16 and in int8 W8A8, and the difference of their logits."""
    where = training_device()
    model = random_model(config_for(where), where, torch.bfloat16, "sdpa")
    ids = torch.tensor([prompts(1, 64, model.config.vocab_size)[0]], device=where)
    plain = new_runner(model)
    before, logits = _speeds(plain, 0.0, where), _logits(plain, ids)
    del plain
    _quantize_in_place(model)
    runner = new_runner(model)
    after = _speeds(runner, 0.0, where)
    return {
        "layers": model.config.num_hidden_layers,
        "bfloat16": before,
        "int8": after,
        "times_as_fast": {name: round(after[name] / before[name], 3) for name in before},
        "relative_difference_of_logits": float((_logits(runner, ids) - logits).norm() / logits.norm()),
    }


def evaluation() -> dict[str, Any]:
    """Tokens/s of the held-out loss, in float32 as the operation `evaluate` computes it, and under bfloat16."""
    where = training_device()
    config = config_for(where)
    model = random_model(config, where, torch.float32, "packed")
    rows = documents(*((64, 128, 2_048) if where.type == "cuda" else (6, 8, 64)), vocab=config.vocab_size)
    tokens, row, losses = sum(len(each) for each in rows), {"layers": config.num_hidden_layers}, {}
    row["tokens"] = tokens
    for precision in ("float32", "bfloat16"):
        held_out_loss(model, rows[:2], precision=precision)
        finish(where)
        began_s = time.perf_counter()
        losses[precision] = mean_loss(held_out_loss(model, rows, precision=precision))
        row[f"tokens_per_second_{precision}"] = round(tokens / (time.perf_counter() - began_s), 1)
    return {**row, "relative_difference_of_loss": abs(losses["bfloat16"] / losses["float32"] - 1), "peak_gib": peak_gib(where)}


def eagle3() -> dict[str, Any]:
    """Training steps of an EAGLE-3 drafter whose target computes the hidden states with each batch."""
    where = training_device()
    on_gpu = where.type == "cuda"
    runner = new_runner(random_model(config_for(where), where, torch.bfloat16, "sdpa"))
    vocab, steps, longest = runner.config.vocab_size, 8 if on_gpu else 3, 1_024 if on_gpu else 48
    rows = [
        AnswerRow(document.row_id, document.input_ids.tolist(), len(document) // 4)
        for document in documents(96, longest // 4, longest, vocab)
    ]
    settings = speculator_settings(
        architecture="eagle3",
        steps=steps,
        tokens_per_step=16 * longest,
        max_length=longest,
        learning_rate=1e-4,
        checkpoint_every=1_000_000,
        checkpoint_seconds=1e6,
    ).resolved()
    ids = torch.arange(vocab // 4)
    model = new_draft_model(settings, runner, ids)
    plan = SpeculatorPlan(rows, OnlineStates(runner, rows, model.capture), settings)
    loss = SpeculatorLoss(Teacher(runner.head.weight, ids, runner.soft_cap), settings)
    with tempfile.TemporaryDirectory() as folder:
        train(model, plan, loss, settings, Path(folder) / ".work", Progress(None), "gpu")
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return {
        "layers": runner.config.num_hidden_layers,
        "ttt_steps": settings.ttt_steps,
        "tokens_per_second": round(median(line["tokens_per_second"] for line in lines[2:]), 1),
        "data_wait_share": median(line["data_wait_share"] for line in lines[2:]),
        "loss": [round(lines[0]["loss"], 3), round(lines[-1]["loss"], 3)],
        "peak_gib": peak_gib(where),
    }


def _speeds(runner: Runner, temperature: float, where: torch.device) -> dict[str, float]:
    """Tokens/s by the number of rows that are decoded together."""
    asked, new = (512, 128) if where.type == "cuda" else (16, 4)
    found = {}
    for rows in BATCHES if where.type == "cuda" else (1, 2):
        texts = prompts(rows, asked, runner.config.vocab_size)

        def work(texts: list[list[int]] = texts) -> None:
            decode(
                runner,
                texts,
                [f"row-{i}" for i in range(len(texts))],
                eos_ids=set(),
                temperature=temperature,
                max_new_tokens=new,
                batch_size=len(texts),
            )

        found[f"tokens_per_second_{rows}"] = round(rows * new / seconds_of(work, where, repeats=2), 1)
    return found


def _logits(runner: Runner, ids: torch.Tensor) -> torch.Tensor:
    return runner.logits(runner.forward(ids, runner.new_cache(len(ids)))[0])


def _quantize_in_place(model: Any) -> None:
    """Puts the layers of scheme w8a8 in the place of the float ones, one weight at a time."""
    kind = W8A8.load_layer()
    for name in block_layers(model).linear.values():
        parent, _, child = name.rpartition(".")
        whole = model.get_submodule(parent)
        linear = getattr(whole, child)
        out_features, in_features = linear.weight.shape
        layer = kind(in_features, out_features, False, linear.weight.dtype, W8A8.stored(out_features, in_features))
        for part, value in kind.encode(linear.weight.detach().float()).items():
            setattr(layer, part, value)
        setattr(whole, child, layer)
