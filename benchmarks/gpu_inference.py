"""Parts of benchmarks.gpu that run a target: ceilings of the device, packed attention, decoding, int8 and FP8, held-out loss, a
drafter's training steps."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_models import config_for, documents, finish, peak_gib, prompts, random_model, seconds_of
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.runner import Runner, new_runner
from model_ops.documents.likelihood import held_out_loss, mean_loss
from model_ops.jobs import Progress
from model_ops.machine import device_rates
from model_ops.machine.devices import device_of
from model_ops.models import attention as packed
from model_ops.models.model_directory import training_device
from model_ops.quantization.fp8_linear import kernel_suits
from model_ops.quantization.model_layers import block_layers
from model_ops.quantization.scheme import Scheme
from model_ops.quantization.schemes import FP8, W8A8
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, OnlineStates
from model_ops.speculators.states.speculator_batches import SpeculatorPlan
from model_ops.tensors.varlen_kernel import takes_varlen_kernel
from model_ops.training.trainer import train

BATCHES = (1, 64)
"""Rows that are decoded together."""
DRAFTS = 3
PRODUCTS = (*device_rates.SHAPES, (64, 4_096, 14_336), (16_384, 4_096, 16))
"""Rows, inputs and outputs: training, decoding of 64 rows, an adapter."""


def ceilings() -> Iterator[dict[str, Any]]:
    """What the device reaches: matrix products by shape, a copy (bytes read and written), and attention; kept for the planner.
    And whether torch's FP8 products are taken."""
    where = training_device()
    on_gpu = where.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    for rows, inner, outer in PRODUCTS:
        rows, inner, outer = (size if on_gpu else max(16, size // 128) for size in (rows, inner, outer))
        one, other = (torch.randn(*shape, device=where, dtype=dtype) for shape in ((rows, inner), (inner, outer)))
        seconds = seconds_of(lambda one=one, other=other: one @ other, where)
        yield {"product": [rows, inner, outer], "tflops": round(2e-12 * rows * inner * outer / seconds, 3)}
    source = torch.empty((1 << 30) if on_gpu else (1 << 20), dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    yield {"copy_tb_s": round(2e-12 * source.numel() / seconds_of(lambda: target.copy_(source), where), 4)}
    if on_gpu:
        rates, known = device_rates.measured(), device_of(torch.cuda.get_device_name(where))
        if known is not None:
            device_rates.keep(rates, known.name)
        yield {**rates._asdict(), "fp8_products": kernel_suits(where)}


def attention() -> Iterator[dict[str, Any]]:
    """Forward and backward of packed attention in one layer, for documents of many lengths and of one: the kernel for variable
    lengths against documents gathered into groups."""
    where = training_device()
    on_gpu = where.type == "cuda"
    config, dtype = config_for(where), torch.bfloat16 if on_gpu else torch.float32
    ragged = [len(row) for row in documents(24, *((64, 2_048) if on_gpu else (4, 64)), vocab=8)]
    for lengths in (ragged, [4_096 if on_gpu else 32] * 4):
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
            yield {"error": "torch refuses the flash attention kernel for these streams on this device"}
            return

        def step(streams: list[torch.Tensor] = streams, lengths: list[int] = lengths) -> torch.Tensor:
            output, _ = packed.packed_attention(torch.nn.Module(), *streams, document_lengths=lengths)
            torch.autograd.grad(output.float().square().sum(), streams)
            return output.detach().float()

        found, seconds = step(), seconds_of(step, where)
        packed.takes_varlen_kernel = lambda *_: False
        try:
            other, other_seconds = step(), seconds_of(step, where)
        finally:
            packed.takes_varlen_kernel = takes_varlen_kernel
        pairs = sum(length * length for length in lengths) / 2
        yield {
            "tokens": sum(lengths),
            "documents": len(lengths),
            "kernel": taken,
            "milliseconds": round(1e3 * seconds, 3),
            "milliseconds_gathered": round(1e3 * other_seconds, 3),
            "times_as_fast": round(other_seconds / seconds, 3),
            "tflops": round(12e-12 * config.num_attention_heads * config.head_dim * pairs / seconds, 3),
            "relative_difference": float((found - other).norm() / other.norm()),
        }


def decoding() -> Iterator[dict[str, Any]]:
    """Tokens/s of answers by the project's own decoder: with recorded forwards and without, with a drafter and without. Weights
    are random, so a drafter's tokens are nearly never accepted: its rounds are what is measured."""
    where = training_device()
    runner = new_runner(random_model(config_for(where), where, torch.bfloat16, "sdpa"))
    row = {"layers": runner.config.num_hidden_layers}
    yield {**row, "graphs": runner.graphed, **_speeds(runner, 1.0, where), "peak_gib": peak_gib(where)}
    if runner.graphed:
        runner.graphed = False
        yield {**row, "graphs": False, **_speeds(runner, 1.0, where)}
        runner.graphed = True
    settings = speculator_settings(architecture="eagle3", steps=1).resolved()
    model = new_draft_model(settings, runner, torch.arange(runner.config.vocab_size // 4)).to(where)
    drafter = model.ready_to_draft(runner.dtype).drafter()
    yield {**row, "graphs": runner.graphed, "drafter": "eagle3", "drafts": DRAFTS, **_speeds(runner, 1.0, where, drafter)}


def rounded_decoding() -> Iterator[dict[str, Any]]:
    """Tokens/s of greedy answers of one target in bfloat16, in int8 W8A8 and in FP8, and the difference of their logits."""
    where = training_device()
    before: dict[str, float] = {}
    logits = None
    for name, scheme in (("bfloat16", None), ("w8a8", W8A8), ("fp8", FP8)):
        model = random_model(config_for(where), where, torch.bfloat16, "sdpa")
        ids = torch.tensor([prompts(1, 64, model.config.vocab_size)[0]], device=where)
        if scheme is not None:
            _quantize_in_place(model, scheme)
        runner = new_runner(model)
        speeds, found = _speeds(runner, 0.0, where), _logits(runner, ids)
        row = {"weights": name, "layers": model.config.num_hidden_layers, **speeds}
        if scheme is None:
            before, logits = speeds, found
        else:
            row["times_as_fast"] = {key: round(speeds[key] / before[key], 3) for key in before if key.startswith("tokens")}
            row["relative_difference_of_logits"] = float((found - logits).norm() / logits.norm())
        yield row
        del model, runner


def evaluation() -> Iterator[dict[str, Any]]:
    """Tokens/s of the held-out loss, in float32 as on a CPU, and in bfloat16 as the operation `evaluate` computes it here."""
    where = training_device()
    config = config_for(where)
    model = random_model(config, where, torch.float32, "packed")
    rows = documents(*((64, 128, 2_048) if where.type == "cuda" else (6, 8, 64)), vocab=config.vocab_size)
    tokens, losses = sum(len(each) for each in rows), {}
    for precision in ("bfloat16", "float32"):
        held_out_loss(model, rows[:2], precision=precision)
        finish(where)
        began_s = time.perf_counter()
        losses[precision] = mean_loss(held_out_loss(model, rows, precision=precision))
        speed = round(tokens / (time.perf_counter() - began_s), 1)
        yield {"layers": config.num_hidden_layers, "tokens": tokens, "precision": precision, "tokens_per_second": speed}
    yield {"relative_difference_of_loss": abs(losses["bfloat16"] / losses["float32"] - 1), "peak_gib": peak_gib(where)}


def eagle3() -> Iterator[dict[str, Any]]:
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
    yield {
        "layers": runner.config.num_hidden_layers,
        "ttt_steps": settings.ttt_steps,
        "tokens_per_second": round(median(line["tokens_per_second"] for line in lines[2:]), 1),
        "data_wait_share": median(line["data_wait_share"] for line in lines[2:]),
        "loss": [round(lines[0]["loss"], 3), round(lines[-1]["loss"], 3)],
        "peak_gib": peak_gib(where),
    }


def _speeds(runner: Runner, temperature: float, where: torch.device, drafter: Any = None) -> dict[str, float]:
    """Tokens/s and rounds/s by the number of rows that are decoded together."""
    asked, new = (512, 128) if where.type == "cuda" else (16, 4)
    found = {}
    for rows in BATCHES if where.type == "cuda" else (1, 2):
        texts = prompts(rows, asked, runner.config.vocab_size)
        rounds = 0

        def work(texts: list[list[int]] = texts) -> None:
            nonlocal rounds
            answers = decode(
                runner,
                texts,
                [f"row-{i}" for i in range(len(texts))],
                eos_ids=set(),
                temperature=temperature,
                max_new_tokens=new,
                batch_size=len(texts),
                drafter=drafter,
                num_speculative_tokens=DRAFTS if drafter is not None else 0,
            )
            rounds = max(answer.forwards for answer in answers)

        seconds = seconds_of(work, where, repeats=2)
        found[f"tokens_per_second_{rows}"] = round(rows * new / seconds, 1)
        found[f"rounds_per_second_{rows}"] = round(rounds / seconds, 1)
    return found


def _logits(runner: Runner, ids: torch.Tensor) -> torch.Tensor:
    return runner.logits(runner.forward(ids, runner.new_cache(len(ids)))[0])


def _quantize_in_place(model: Any, scheme: Scheme) -> None:
    """Puts the layers of a scheme in the place of the float ones, one weight at a time."""
    kind = scheme.load_layer()
    for name in block_layers(model).linear.values():
        parent, _, child = name.rpartition(".")
        whole = model.get_submodule(parent)
        linear = getattr(whole, child)
        out_features, in_features = linear.weight.shape
        layer = kind(in_features, out_features, False, linear.weight.dtype, scheme.stored(out_features, in_features))
        layer.hold(kind.encode(linear.weight.detach().float()))
        setattr(whole, child, layer)
