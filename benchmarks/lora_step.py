"""What a step costs with adapters, beside full fine-tuning of the same model on the same rows.

    python -m benchmarks.lora_step           # a 103M model, about 3 minutes on 2 cores
    python -m benchmarks.lora_step --quick   # a small model, seconds

The model is Qwen3-shaped with random weights (hidden 512, 8 layers, 8 heads, 4 KV heads of 64, MLP 1,536, vocabulary
151,936, head tied to the embedding), a step is 2 packed rows of 2,048 tokens in bfloat16, optimizer included. Full and
LoRA steps alternate in one process, so that other work on the machine meets both alike; `ratio` is the median of the
ratios of neighbouring steps. Rows are GSM8K with the house's tokenizer and chat template where ../shared is there, the
answers' tokens as targets; else synthetic rows with lengths and target shares drawn alike (`rows` says which).

A full step multiplies by each weight three times (forward, its input's gradient, its own), an adapter's step twice: the
limit is about 4N / 6N, lower by the optimizer's part, higher by what both compute alike (attention, norms, softmax at the
head). `needed_flops_ratio` is that limit for these rows, by model_ops.training.flops.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import model_ops.models.attention  # noqa: F401  registers "packed"
from benchmarks.record import record
from model_ops.models.lora import add_adapters
from model_ops.models.model_directory import load_tokenizer
from model_ops.parallel.world import World
from model_ops.specs import SftSettings
from model_ops.training.batch import IGNORED
from model_ops.training.conversations import Row, tokenize
from model_ops.training.documents import Document
from model_ops.training.flops import matrix_work, needed_flops
from model_ops.training.linear_cross_entropy import next_token_loss
from model_ops.training.optimizers import build_optimizer
from model_ops.training.packing import PackedPlan
from model_ops.training.step import optimizer_step
from model_ops.worker import keep_freed_memory

SHARED = Path(__file__).resolve().parents[2] / "shared"
SHAPE = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
         "intermediate_size": 1_536, "vocab_size": 151_936, "tie_word_embeddings": True}
QUICK_SHAPE = {**SHAPE, "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768, "vocab_size": 8_192}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and few steps; nothing is recorded")
    quick = parser.parse_args().quick
    keep_freed_memory()
    torch.manual_seed(0)
    full = Qwen3ForCausalLM(Qwen3Config(**(QUICK_SHAPE if quick else SHAPE), max_position_embeddings=2_048,
                                        attn_implementation="packed"))
    parameters = sum(parameter.numel() for parameter in full.parameters())
    adapted = copy.deepcopy(full).bfloat16()
    common = {"steps": 64, "tokens_per_step": 4_096, "max_length": 2_048, "preset": "quick"}
    settings = {"full": SftSettings(**common).resolved(), "lora": SftSettings(method="lora", **common).resolved()}
    counts = add_adapters(adapted, settings["lora"].lora)
    documents, rows = training_documents()
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
            numbers = optimizer_step(model, batches, next_token_loss, optimizers[name], settings[name], world,
                                     name=f"{name} step {index}")
            if index > 0:  # the first step of each makes its kernels and the optimizer's state
                seconds[name].append(time.perf_counter() - started_s)
            losses[name].append(numbers["loss"])
            flops[name] += sum(needed_flops(matrix_work(model), batch.document_lengths, int((batch.labels != IGNORED).sum()))
                               for batch in batches)
    ratios = [lora / whole for lora, whole in zip(seconds["lora"], seconds["full"], strict=True)]
    tokens = np.mean([sum(batch.tokens for batch in plan.step(index)) for index in range(1, len(ratios) + 1)])
    record("lora_step", {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
        "full_step_s": round(statistics.median(seconds["full"]), 3),
        "lora_step_s": round(statistics.median(seconds["lora"]), 3),
        "needed_flops_ratio": round(flops["lora"] / flops["full"], 3),
        "tokens_a_step": round(float(tokens)),
        "target_share": round(sum(d.target_tokens for d in documents) / sum(len(d) for d in documents), 3),
        "parameters": parameters,
        "rank": settings["lora"].lora.rank,
        "trained_by_lora": counts.trained_parameters,
        "losses": {name: [round(values[0], 3), round(values[-1], 3)] for name, values in losses.items()},
        "threads": torch.get_num_threads(),
        "rows": rows,
    }, keep=not quick)


def training_documents(count: int = 1_000) -> tuple[list[Document], str]:
    """GSM8K conversations by the house's tokenizer, or rows with lengths like theirs; and which of the two."""
    path = SHARED / "data" / "gsm8k_train.jsonl"
    if not path.exists():
        return synthetic_documents(count), "synthetic"
    examples = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    chats = [Row(f"gsm8k-{i}", [{"role": "user", "content": example["question"]},
                                {"role": "assistant", "content": example["answer"]}]) for i, example in enumerate(examples)]
    documents, _ = tokenize(chats, load_tokenizer(SHARED / "models" / "house"), 2_048)
    return list(documents), "gsm8k"


def synthetic_documents(count: int) -> list[Document]:
    """Lengths of 60 to 500 tokens, the later half of each the targets, ids of a vocabulary of 8,192."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(60, 500, count)
    return [Document(f"synthetic-{i}", generator.integers(3, 8_192, length).astype(np.int32), np.arange(length) >= length // 2)
            for i, length in enumerate(lengths)]


if __name__ == "__main__":
    main()
