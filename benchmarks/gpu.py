"""Supervised fine-tuning of an 8B Llama-shaped model on one CUDA device: tokens/s, utilisation, peak memory.

    python -m benchmarks.gpu                 # LoRA and full at 4,096, 32,768 and 131,072 tokens
    python -m benchmarks.gpu --quick         # LoRA at 4,096 only
    python -m benchmarks.gpu --rows lora:4096,lora:131072

Needs torch 2.11 or later, transformers 5.17 or later, and a device; nothing else. Weights are random and made on the
device in the dtype they are trained in. Everything else is what trains: trainer, plan of packed rows, loss at the head,
attention, activation checkpointing and offload as `millrace plan` chooses them for this device. A row that the planner
says does not fit is not tried: its prediction is its result. Every row runs in a process of its own.

Without a CUDA device the same code trains a toy model at toy lengths on the CPU, to see that it works; its rows say
device "cpu" and claim nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record import record

LENGTHS = (4_096, 32_768, 131_072)
TOY_LENGTHS = (256, 512, 1_024)
LEAST_TOKENS_PER_STEP = 16_384
WARM_UP, MEASURED = 3, 6
LLAMA_8B = {"hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256, "max_position_embeddings": 131_072,
            "tie_word_embeddings": False}
TOY = {**LLAMA_8B, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
       "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1_024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", help="such as lora:4096,full:32768")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        method, length = given.row.split(":")
        print(json.dumps(measure(method, int(length))))
        return
    import torch

    on_gpu = torch.cuda.is_available()
    lengths = LENGTHS if on_gpu else TOY_LENGTHS
    chosen = given.rows.split(",") if given.rows else (
        [f"lora:{lengths[0]}"] if given.quick else [f"{method}:{length}" for method in ("lora", "full") for length in lengths])
    rows = []
    for row in chosen:
        rows.append(_in_a_process(row))
        print(json.dumps(rows[-1]), flush=True)
    record("gpu", {"rows": rows}, keep=not given.quick and on_gpu)


def measure(method: str, length: int) -> dict[str, Any]:
    """One row: planned, then trained if it fits."""
    import torch
    from transformers import AutoConfig

    from model_ops.devices import Device, peak_bf16_flops, this_machine
    from model_ops.models.model_directory import training_device
    from model_ops.planning.choice import NothingFits, choose
    from model_ops.planning.memory_plan import GIB
    from model_ops.planning.needs import Training, needs_of

    where = training_device()
    on_gpu = where.type == "cuda"
    config = AutoConfig.for_model("llama", **(LLAMA_8B if on_gpu else TOY), bos_token_id=None, eos_token_id=None)
    per_step = max(length, LEAST_TOKENS_PER_STEP if on_gpu else 2_048)
    if on_gpu:
        name = torch.cuda.get_device_name(where)
        peak = peak_bf16_flops(name)
        device = Device(name, torch.cuda.mem_get_info(where)[1] / GIB, peak / 1e12 if peak else None)
    else:
        name, device = "cpu", this_machine()
    row: dict[str, Any] = {"device": name, "method": method, "length": length}
    needs = needs_of(config, Training(method, length, per_step), "8B" if on_gpu else "toy", where.type,
                     document_tokens=length)
    try:
        plan = choose(needs, 1, device)
    except NothingFits as error:
        return {**row, "fits": False, "planner": str(error)}
    setup = plan.setup
    row |= {"fits": True, "micro_batch_tokens": setup.micro_batch_tokens, "activation_checkpointing": setup.checkpointing,
            "offload_activations": setup.offload, "predicted_gib": round(plan.memory.total / GIB, 2)}
    steps = _train(config, method, length, per_step, setup, where)
    measured = steps[WARM_UP:]
    row |= {"tokens_per_second": round(median(step["tokens_per_second"] for step in measured), 1),
            "mfu": median(step["mfu"] for step in measured) if "mfu" in measured[0] else None,
            "data_wait_share": median(step["data_wait_share"] for step in measured),
            "peak_gib": round(measured[-1]["peak_memory_mb"] / 1024, 2),
            "loss": [round(steps[0]["loss"], 3), round(steps[-1]["loss"], 3)]}
    if on_gpu:
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved(where) / GIB, 2)
    return row


def _train(config: Any, method: str, length: int, per_step: int, setup: Any, where: Any) -> list[dict[str, Any]]:
    """Trains, and returns the lines of metrics.jsonl."""
    import numpy as np

    from model_ops.objectives.sft import next_token_loss
    from model_ops.operations.sft_settings import SftSettings
    from model_ops.progress import Progress
    from model_ops.training.packing import Document, PackedPlan
    from model_ops.training.trainer import train

    model = make_model(config, method, where)
    generator = np.random.default_rng(0)
    steps = WARM_UP + MEASURED
    documents = [Document(f"row-{i}", generator.integers(0, config.vocab_size, length, dtype=np.int32),
                          np.ones(length, dtype=bool)) for i in range(steps * per_step // length)]
    settings = SftSettings(
        steps=steps, learning_rate=1e-4, tokens_per_step=per_step, max_length=length, checkpoint_every=1_000_000,
        micro_batch_tokens=setup.micro_batch_tokens, activation_checkpointing=setup.checkpointing,
        offload_activations=setup.offload).resolved()
    with tempfile.TemporaryDirectory() as folder:
        train(model, PackedPlan(documents, settings), next_token_loss, settings, Path(folder) / ".work", Progress(None), "gpu")
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def make_model(config: Any, method: str, where: Any) -> Any:
    """Random weights made on the device: bfloat16 where frozen, float32 where trained; never a copy on the host."""
    import torch
    from transformers import AutoModelForCausalLM

    import model_ops.models.attention  # noqa: F401  registers "packed"

    torch.manual_seed(0)
    dtype = torch.float32 if method == "full" else torch.bfloat16
    with torch.device(where):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="packed")
    if method == "lora":
        from model_ops.models.lora import add_adapters
        from model_ops.models.lora_settings import LoraSettings

        add_adapters(model, LoraSettings(rank=16))
    return model


def _in_a_process(row: str) -> dict[str, Any]:
    """A row's result; an error, out of memory above all, is a result too."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--row", row], capture_output=True, text=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    method, _, length = row.partition(":")
    lines = done.stderr.strip().splitlines()
    said = lines[-1][:500] if lines else f"exit code {done.returncode}"
    return {"method": method, "length": int(length), "fits": None, "error": said}


if __name__ == "__main__":
    main()
