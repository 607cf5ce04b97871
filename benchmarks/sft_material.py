"""What the training benchmarks train, and on what: two model shapes and GSM8K's rows, as this project and as peers read them.

    material = prepare(folder, shared, rows=400, tokens=81_920)      # rows in Parquet and JSONL, models as directories

The rows are questions with their answers through the small chat model's own template and tokenizer; only tokens of answers are
predicted. The larger model has random weights: its speed and memory are those of a trained one.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from model_ops.documents.conversations import tokenize
from model_ops.documents.documents import Document
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.row import Row
from model_ops.tensors.batch import IGNORED

MAX_LENGTH = 2_048
LARGE = {
    "vocab_size": 151_936,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1_536,
    "max_position_embeddings": 4_096,
    "tie_word_embeddings": True,
}

CALCULATED = re.compile(r"<<[^>]*>>")


@dataclass(frozen=True)
class Material:
    """dataset: train.parquet. held_out: validation.parquet. rows: the training rows as JSONL of input_ids, completion_mask."""

    dataset: Path
    held_out: Path
    rows: Path
    small: Path
    large: Path


def prepare(folder: Path, shared: Path, rows: int, tokens: int, held_out: int = 200) -> Material:
    """Writes `rows` training rows of at most `tokens` tokens in all (see `fitting`), and `held_out` rows that no one trains on.
    Raises SystemExit where the data is not there."""
    small = shared / "models" / "house"
    if not (small / "config.json").exists() or not (shared / "data" / "gsm8k_train.jsonl").exists():
        raise SystemExit(f"{shared} lacks models/house or data/gsm8k_train.jsonl: give the folder that has them with --shared")
    tokenizer = load_tokenizer(small)
    train, _ = tokenize(gsm8k(shared, "train"), tokenizer, MAX_LENGTH)
    kept = fitting([len(document.input_ids) for document in train], rows, tokens)
    dataset, apart = folder / "dataset", folder / "held-out"
    _write((train[index] for index in kept), dataset / "train.parquet")
    _write(tokenize(gsm8k(shared, "test", held_out), tokenizer, MAX_LENGTH)[0], apart / "validation.parquet")
    with (folder / "rows.jsonl").open("w") as file:
        for index in kept:
            file.write(
                json.dumps(
                    {"input_ids": train[index].input_ids.tolist(), "completion_mask": train[index].targets.astype(int).tolist()}
                )
                + "\n"
            )
    large = folder / "large"
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**LARGE, bos_token_id=None, eos_token_id=2, pad_token_id=0))
    model.to(torch.bfloat16).save_pretrained(large)
    tokenizer.save_pretrained(large)
    return Material(dataset, apart, folder / "rows.jsonl", small, large)


def fitting(lengths: list[int], rows: int, tokens: int) -> list[int]:
    """Indices of the first `rows` rows no longer than a limit: the largest limit with which they have at most `tokens` tokens.
    Every trainer can then take the same rows in the same number of steps, packed or not. Raises ValueError where none fit."""
    for limit in sorted(set(lengths), reverse=True):
        kept = [index for index, length in enumerate(lengths) if length <= limit][:rows]
        if len(kept) == rows and sum(lengths[index] for index in kept) <= tokens:
            return kept
    raise ValueError(f"no {rows} of {len(lengths)} rows have at most {tokens} tokens in all")


def gsm8k(shared: Path, split: str, limit: int | None = None, plain: bool = False) -> list[Row]:
    """Questions with their answers; raises OSError where the data is not there. plain: without the calculator's annotations
    (`<<48/2=24>>`), as the small chat model was trained."""
    lines = (shared / "data" / f"gsm8k_{split}.jsonl").read_text().splitlines()[:limit]
    return [
        Row(
            f"{split}-{number}",
            [
                {"role": "user", "content": example["question"]},
                {"role": "assistant", "content": CALCULATED.sub("", example["answer"]) if plain else example["answer"]},
            ],
        )
        for number, example in enumerate(map(json.loads, lines))
    ]


def _write(documents: Iterable[Document], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, list] = {"row_id": [], "messages": [], "token_ids": [], "labels": []}
    for document in documents:
        columns["row_id"].append(document.row_id)
        columns["messages"].append("[]")
        columns["token_ids"].append(document.input_ids.tolist())
        columns["labels"].append(
            [int(token) if learnt else IGNORED for token, learnt in zip(document.input_ids, document.targets, strict=True)]
        )
    pq.write_table(pa.table(columns), path)
