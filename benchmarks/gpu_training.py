"""Parts of benchmarks.gpu that train: SFT throughput, deterministic mode, compiled blocks.

Trainer, plan of packed rows, loss at the head, attention, activation checkpointing and offload are those of a real run.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_models import config_for, documents, finish, random_model
from model_ops.adapters.lora import add_adapters
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.documents.packing import PackedPlan
from model_ops.families.loading import blocks_of
from model_ops.jobs.progress import Progress
from model_ops.machine.devices import Device, peak_bf16_flops, this_machine
from model_ops.models.model_directory import training_device
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.planning.choice import NothingFits, choose
from model_ops.planning.memory_plan import GIB
from model_ops.planning.needs import Training, needs_of
from model_ops.training.trainer import train

TOY_SHARE, TOY_LEAST = 128, 64
LEAST_TOKENS_PER_STEP = 16_384
WARM_UP, MEASURED = 3, 6


def sft(method: str, length: int) -> dict[str, Any]:
    """Tokens/s, utilisation and peak memory of SFT as `millrace plan` sets it up for this device. If the planner finds no setup
    that fits, its sentence is the result."""
    where = training_device()
    on_gpu = where.type == "cuda"
    length = length if on_gpu else max(TOY_LEAST, length // TOY_SHARE)
    config = config_for(where, fitted=False)
    per_step = max(length, LEAST_TOKENS_PER_STEP if on_gpu else 1_024)
    row: dict[str, Any] = {"method": method, "length": length}
    needs = needs_of(config, Training(method, length, per_step), "8B" if on_gpu else "toy", where.type, document_tokens=length)
    try:
        plan = choose(needs, 1, _device(where))
    except NothingFits as error:
        return {**row, "fits": False, "planner": str(error)}
    setup = plan.setup
    row |= {
        "fits": True,
        "micro_batch_tokens": setup.micro_batch_tokens,
        "activation_checkpointing": setup.checkpointing,
        "offload_activations": setup.offload,
        "predicted_gib": round(plan.memory.total / GIB, 2),
    }
    steps = WARM_UP + MEASURED
    rows = documents(steps * per_step // length, length, length, config.vocab_size)
    lines = _train(
        _to_tune(config, method, where),
        rows,
        steps,
        tokens_per_step=per_step,
        max_length=length,
        micro_batch_tokens=setup.micro_batch_tokens,
        activation_checkpointing=setup.checkpointing,
        offload_activations=setup.offload,
    )
    measured = lines[WARM_UP:]
    row |= {
        "tokens_per_second": round(median(line["tokens_per_second"] for line in measured), 1),
        "mfu": median(line["mfu"] for line in measured) if "mfu" in measured[0] else None,
        "data_wait_share": median(line["data_wait_share"] for line in measured),
        "peak_gib": round(measured[-1]["peak_memory_mb"] / 1024, 2),
        "loss": [round(lines[0]["loss"], 3), round(lines[-1]["loss"], 3)],
    }
    if on_gpu:
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved(where) / GIB, 2)
    return row


def deterministic() -> dict[str, Any]:
    """Whether two runs end with the same bits, with and without `deterministic: true`, and how much slower that is."""
    where = training_device()
    config = config_for(where, fitted=False, num_hidden_layers=2)
    longest = 2_048 if where.type == "cuda" else 64
    rows, steps = documents(96, longest // 16, longest, config.vocab_size), 4
    weights, seconds = {}, {}
    for wanted in (True, False):
        for run in range(2):
            model = _to_tune(config, "full", where)
            lines = _train(model, rows, steps, tokens_per_step=8 * longest, max_length=longest, deterministic=wanted)
            weights[wanted, run] = {name: value.detach().cpu() for name, value in model.named_parameters()}
            seconds[wanted] = median(line["tokens"] / line["tokens_per_second"] for line in lines[1:])
            del model
    same = {
        wanted: all(torch.equal(value, weights[wanted, 1][name]) for name, value in weights[wanted, 0].items())
        for wanted in (True, False)
    }
    row = {
        "steps": steps,
        "same_bits": same[True],
        "same_bits_without": same[False],
        "step_time_ratio": round(seconds[True] / seconds[False], 3),
    }
    return row if same[True] else {**row, "error": "deterministic: true ended with other bits in the second run"}


def compiled() -> dict[str, Any]:
    """A LoRA step with blocks compiled by torch.compile, against the same step without. All documents have one length, because
    other lengths compile again. On a CPU the blocks are traced but not compiled."""
    where = training_device()
    on_gpu = where.type == "cuda"
    config = config_for(where)
    length, steps = (2_048, 8) if on_gpu else (64, 4)
    rows = documents(steps * 8, length, length, config.vocab_size)
    found = {}
    for wanted in (False, True):
        model = _to_tune(config, "lora", where)
        if wanted:
            for block in blocks_of(model):
                block.compile(backend="inductor" if on_gpu else "eager", dynamic=False)
        began_s = time.perf_counter()
        lines = _train(model, rows, steps, tokens_per_step=8 * length, max_length=length, micro_batch_tokens=4 * length)
        finish(where)
        found[wanted] = (lines, time.perf_counter() - began_s)
        del model
    speed = {wanted: median(line["tokens_per_second"] for line in lines[2:]) for wanted, (lines, _) in found.items()}
    loss = {wanted: lines[-1]["loss"] for wanted, (lines, _) in found.items()}
    return {
        "layers": config.num_hidden_layers,
        "tokens_per_second": round(speed[False], 1),
        "tokens_per_second_compiled": round(speed[True], 1),
        "times_as_fast": round(speed[True] / speed[False], 3),
        "seconds": round(found[False][1], 1),
        "seconds_compiled": round(found[True][1], 1),
        "relative_difference_of_loss": abs(loss[True] / loss[False] - 1),
    }


def _to_tune(config: Any, method: str, where: torch.device) -> Any:
    """float32 where weights are trained, bfloat16 where they are frozen."""
    model = random_model(config, where, torch.float32 if method == "full" else torch.bfloat16, "packed")
    if method == "lora":
        add_adapters(model, LoraSettings(rank=16))
    return model


def _train(model: Any, rows: list[Any], steps: int, **values: Any) -> list[dict[str, Any]]:
    """Trains, and returns the lines of metrics.jsonl."""
    settings = SftSettings(
        steps=steps, learning_rate=1e-4, checkpoint_every=1_000_000, checkpoint_seconds=1e6, **values
    ).resolved()
    with tempfile.TemporaryDirectory() as folder:
        train(model, PackedPlan(rows, settings), next_token_loss, settings, Path(folder) / ".work", Progress(None), "gpu")
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def _device(where: torch.device) -> Device:
    if where.type != "cuda":
        return this_machine()
    name = torch.cuda.get_device_name(where)
    peak = peak_bf16_flops(name)
    return Device(name, torch.cuda.mem_get_info(where)[1] / GIB, peak / 1e12 if peak else None)
