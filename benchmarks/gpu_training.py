"""Parts of benchmarks.gpu that train: LoRA by micro-batch with a profile, SFT as the planner sets it up, deterministic mode.

Trainer, plan of packed rows, loss at the head, attention, activation checkpointing and offload are those of a real run.
"""

import gc
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_models import config_for, documents, finish, random_model
from model_ops.adapters.lora import add_adapters
from model_ops.adapters.lora_settings import LoraSettings
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress
from model_ops.machine.devices import Device, device_of, this_machine
from model_ops.models.model_directory import training_device
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.planning.choice import PLANNED_FOR, NothingFits, choose, tokens_per_second
from model_ops.planning.memory_plan import GIB, MeshSizes, Setup, memory_of
from model_ops.planning.needs import Training, needs_of
from model_ops.training.trainer import train

TOY_SHARE, TOY_LEAST = 128, 64
LEAST_TOKENS_PER_STEP = 16_384
WARM_UP, MEASURED = 2, 4
PROFILED_ROWS = 20
LORA_LENGTH = 4_096
LORA_RUNS = (8_192, 16_384)
"""Tokens of a micro-batch."""


def lora(length: int = LORA_LENGTH) -> Iterator[dict[str, Any]]:
    """Tokens/s, utilisation and peak memory of LoRA at rank 16 by micro-batch, and the kernels that take most of a step. A
    micro-batch that the planner finds too large is left out with its figure."""
    where = training_device()
    on_gpu = where.type == "cuda"
    length = length if on_gpu else TOY_LEAST
    config = config_for(where, fitted=False)
    profiled = False
    for tokens in LORA_RUNS:
        tokens = tokens if on_gpu else 2 * tokens // TOY_SHARE
        per_step = 2 * tokens
        row: dict[str, Any] = {"method": "lora", "length": length, "micro_batch_tokens": tokens}
        needs = needs_of(config, Training("lora", length, per_step), "8B", where.type, document_tokens=length)
        device, setup = _device(where), Setup(MeshSizes(), tokens, "none")
        memory = memory_of(needs, setup, device)
        row["predicted_gib"] = round(memory.total / GIB, 2)
        row["predicted_tokens_per_second"] = _rounded(tokens_per_second(needs, setup, device))
        if memory.total > PLANNED_FOR * device.memory_gib * GIB:
            yield {**row, "left_out": f"the planner needs {memory.total / GIB:.1f} of {device.memory_gib:.1f} GiB"}
            continue
        model = _to_tune(config, "lora", where)
        rows = documents((WARM_UP + MEASURED) * per_step // length, length, length, config.vocab_size)
        settings = {"tokens_per_step": per_step, "max_length": length, "micro_batch_tokens": tokens}
        yield {**row, **_numbers(_train(model, rows, WARM_UP + MEASURED, **settings), where)}
        if not profiled:
            profiled = True
            yield {**row, "profile": _profile(model, rows, settings, where)}
        del model
        _give_back(where)


def sft(method: str, length: int) -> Iterator[dict[str, Any]]:
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
        plan = choose(needs, 1, _device(where), alternatives=False)
    except NothingFits as error:
        yield {**row, "left_out": str(error)}
        return
    setup = plan.setup
    row |= {
        "micro_batch_tokens": setup.micro_batch_tokens,
        "activation_checkpointing": setup.checkpointing,
        "offload_activations": setup.offload,
        "predicted_gib": round(plan.memory.total / GIB, 2),
        "predicted_tokens_per_second": _rounded(plan.tokens_per_second),
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
    yield {**row, **_numbers(lines, where)}


def deterministic() -> Iterator[dict[str, Any]]:
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
    yield row if same[True] else {**row, "error": "deterministic: true ended with other bits in the second run"}


def _numbers(lines: list[dict[str, Any]], where: torch.device) -> dict[str, Any]:
    """What the steps after the first ones say."""
    measured = lines[WARM_UP:]
    row = {
        "tokens_per_second": round(median(line["tokens_per_second"] for line in measured), 1),
        "mfu": median(line["mfu"] for line in measured) if "mfu" in measured[0] else None,
        "data_wait_share": median(line["data_wait_share"] for line in measured),
        "peak_gib": round(measured[-1]["peak_memory_mb"] / 1024, 2),
        "loss": [round(lines[0]["loss"], 3), round(lines[-1]["loss"], 3)],
    }
    if where.type == "cuda":
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved(where) / GIB, 2)
    return row


def _profile(model: Any, rows: list[Any], settings: dict[str, Any], where: torch.device) -> list[dict[str, Any]]:
    """The operations or kernels that take most of two steps: name, calls, milliseconds, share."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if where.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        _train(model, rows, 2, **settings)
        finish(where)

    def own(event: Any) -> float:
        return event.self_device_time_total if where.type == "cuda" else event.self_cpu_time_total

    events = sorted(profile.key_averages(), key=own, reverse=True)
    total = sum(map(own, events)) or 1.0
    return [
        {
            "name": event.key[:120],
            "calls": event.count,
            "milliseconds": round(own(event) / 1e3, 2),
            "share": round(own(event) / total, 4),
        }
        for event in events[:PROFILED_ROWS]
    ]


def _to_tune(config: Any, method: str, where: torch.device) -> Any:
    """float32 where weights are trained, bfloat16 where they are frozen."""
    model = random_model(config, where, torch.float32 if method == "full" else torch.bfloat16, "packed")
    if method == "lora":
        add_adapters(model, LoraSettings(rank=16))
    return model


def _train(model: Any, rows: list[Any], steps: int, **values: Any) -> list[dict[str, Any]]:
    """Trains, and returns the lines of metrics.jsonl."""
    settings = SftSettings(
        steps=steps, learning_rate=1e-4, checkpoint_every=1_000_000, checkpoint_seconds=1e6, dry_run=False, **values
    ).resolved()
    with tempfile.TemporaryDirectory() as folder:
        train(model, PackedPlan(rows, settings), next_token_loss, settings, Path(folder) / ".work", Progress(None), "gpu")
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def _device(where: torch.device) -> Device:
    if where.type != "cuda":
        return this_machine()
    name, memory = torch.cuda.get_device_name(where), torch.cuda.mem_get_info(where)[1] / GIB
    known = device_of(name)
    return Device(name, memory) if known is None else replace(known, memory_gib=memory)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number)


def _give_back(where: torch.device) -> None:
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)
