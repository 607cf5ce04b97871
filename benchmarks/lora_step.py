"""Cost of a LoRA step, compared with full fine-tuning of the same model on the same rows.

    python -m benchmarks.lora_step           # a 103M model, about 3 minutes on 2 cores
    python -m benchmarks.lora_step --quick   # a small model, seconds

The model is Qwen3-shaped with random weights (hidden 512, 8 layers, 8 heads, 4 KV heads of 64, MLP 1,536, vocabulary
151,936, head tied to the embedding), a step is 2 packed rows of 2,048 tokens in bfloat16, optimizer included. Full and
LoRA steps alternate in one process, so that other work on the machine meets both alike; `ratio` is the median of the
ratios of neighbouring steps. Rows are GSM8K with the house's tokenizer and chat template where ../shared is there, the
answers' tokens as targets; else synthetic rows with lengths and target shares drawn alike (`rows` says which).

A full step multiplies by each weight three times (forward, its input's gradient, its own), an adapter's step twice: the
limit is about 4N / 6N, lower by the optimizer's part, higher by what both compute alike (attention, norms, softmax at the
head). `needed_flops_ratio` is that limit for these rows, by model_ops.training.step_meter.
"""

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.one_case import one_case
from benchmarks.record import record
from benchmarks.sft_material import LARGE, MAX_LENGTH, gsm8k
from model_ops.adapters.lora import add_adapters
from model_ops.documents.conversations import tokenize
from model_ops.documents.documents import Document, Documents
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import ModelError
from model_ops.machine.process import keep_freed_memory
from model_ops.models.model_directory import load_tokenizer
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.parallel.world import World
from model_ops.tensors.batch import IGNORED
from model_ops.tensors.memory_efficient_layers import use_memory_efficient_layers
from model_ops.training.optimizers import build_optimizer
from model_ops.training.step import optimizer_step
from model_ops.training.step_meter import matrix_work, needed_flops
from model_ops.training.trainer import sparse_lookup_gradients

QUICK_SHAPE = {**LARGE, "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768, "vocab_size": 8_192}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and few steps; nothing is recorded")
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared", help="holds models/house and data/"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(**json.loads(given.measure))))
        return
    record(
        "lora_step",
        one_case("lora_step", "--measure", {"quick": given.quick, "shared": str(given.shared)}),
        keep=not given.quick,
    )


def measure(quick: bool, shared: str) -> dict[str, Any]:
    keep_freed_memory()
    torch.manual_seed(0)
    full = Qwen3ForCausalLM(Qwen3Config(**(QUICK_SHAPE if quick else LARGE), attn_implementation="packed"))
    parameters = sum(parameter.numel() for parameter in full.parameters())
    adapted = copy.deepcopy(full).bfloat16()
    common = {"steps": 64, "tokens_per_step": 4_096, "max_length": 2_048, "preset": "quick"}
    settings = {"full": SftSettings(**common).resolved(), "lora": SftSettings(method="lora", **common).resolved()}
    counts = add_adapters(adapted, settings["lora"].lora)
    for model in (full, adapted):
        use_memory_efficient_layers(model)
    documents, rows = training_documents(Path(shared))
    plan = PackedPlan(documents, settings["full"])
    models = {"full": full.train(), "lora": adapted.train()}
    optimizers = {name: build_optimizer(model, settings[name]) for name, model in models.items()}
    seconds: dict[str, list[float]] = {"full": [], "lora": []}
    losses: dict[str, list[float]] = {"full": [], "lora": []}
    world = World.alone(torch.device("cpu"))
    flops = dict.fromkeys(models, 0.0)
    for index in range(4 if quick else 10):
        for name, model in models.items():
            batches = plan.step(index)
            started_s = time.perf_counter()
            with sparse_lookup_gradients(model, world):
                numbers = optimizer_step(
                    model, batches, next_token_loss, optimizers[name], settings[name], world, name=f"{name} step {index}"
                )
            if index > 0:  # the first step of each makes its kernels and the optimizer's state
                seconds[name].append(time.perf_counter() - started_s)
            losses[name].append(numbers["loss"])
            flops[name] += sum(
                needed_flops(matrix_work(model), batch.document_lengths, int((batch.labels != IGNORED).sum()))
                for batch in batches
            )
    ratios = [lora / whole for lora, whole in zip(seconds["lora"], seconds["full"], strict=True)]
    tokens = np.mean([sum(batch.tokens for batch in plan.step(index)) for index in range(1, len(ratios) + 1)])
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
        "full_step_s": round(statistics.median(seconds["full"]), 3),
        "lora_step_s": round(statistics.median(seconds["lora"]), 3),
        "needed_flops_ratio": round(flops["lora"] / flops["full"], 3),
        "tokens_a_step": round(float(tokens)),
        "target_share": round(float(documents.target_tokens.sum() / documents.lengths.sum()), 3),
        "parameters": parameters,
        "rank": settings["lora"].lora.rank,
        "trained_by_lora": counts.trained_parameters,
        "losses": {name: [round(values[0], 3), round(values[-1], 3)] for name, values in losses.items()},
        "threads": torch.get_num_threads(),
        "rows": rows,
    }


def training_documents(shared: Path, count: int = 1_000) -> tuple[Documents, str]:
    """GSM8K conversations by the small chat model's tokenizer, or rows with lengths like theirs; and which of the two."""
    try:
        rows = gsm8k(shared, "train", count)
        documents, _ = tokenize(rows, load_tokenizer(shared / "models" / "house"), MAX_LENGTH)
    except (OSError, ModelError):
        return synthetic_documents(count), "synthetic"
    return documents, "gsm8k"


def synthetic_documents(count: int) -> Documents:
    """Rows of 60 to 500 tokens, whose second halves are targets; vocabulary of 8,192."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(60, 500, count)
    return Documents.gather(
        Document(f"synthetic-{i}", generator.integers(3, 8_192, length).astype(np.int32), np.arange(length) >= length // 2)
        for i, length in enumerate(lengths)
    )


if __name__ == "__main__":
    main()
