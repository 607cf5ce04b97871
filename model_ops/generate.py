"""Operation `generate`: the target answers the prompts of a dataset, which is what its drafter is trained on.

    {"operation": "generate", "inputs": {"target": MODEL, "dataset": DATASET}, "output": DIR, "settings": {...}}

Every row of train.parquet and validation.parquet whose conversation holds an assistant message gives one prompt: what
stands before the last one. The output has the same two files: row_id, session_id, prompt_shape, prompt_token_ids,
answer_token_ids (with the end-of-text token where the target gave it), finish_reason, temperature.
Finished chunks are kept under output/.work, so a killed run answers no prompt twice.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.decoding.decode import decode
from model_ops.decoding.incremental import IncrementalModel
from model_ops.decoding.prompts import Prompt, read_prompts
from model_ops.errors import ModelError
from model_ops.models.model_directory import load_tokenizer
from model_ops.models.target import end_of_text_ids, load_runner
from model_ops.progress import Progress
from model_ops.specs import GenerateSettings, Job

CHUNK_BATCHES = 4
"""Batches in a chunk: what a kill can lose."""

SCHEMA = pa.schema([
    ("row_id", pa.string()), ("session_id", pa.string()), ("prompt_shape", pa.string()),
    ("prompt_token_ids", pa.list_(pa.int32())), ("answer_token_ids", pa.list_(pa.int32())),
    ("finish_reason", pa.string()), ("temperature", pa.float64()),
])


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Answers of inputs["target"] to the prompts of inputs["dataset"]; see the file's first lines."""
    settings: GenerateSettings = job.typed_settings()
    target = job.inputs["target"]
    tokenizer = load_tokenizer(target)
    chosen = {}
    for name in ("train", "validation"):
        path = job.inputs["dataset"] / f"{name}.parquet"
        if name == "train" or path.exists():
            prompts = read_prompts(job.inputs["dataset"], name, tokenizer)
            limit = settings.prompts
            if limit is not None and name == "validation":
                limit = max(1, limit // 10)
            chosen[name] = choose_prompts(prompts, limit, settings.seed)
    runner, eos_ids = load_runner(target), end_of_text_ids(target)
    room = runner.config.max_position_embeddings - 1
    too_long = sum(len(prompt.ids) > room for prompts in chosen.values() for prompt in prompts)
    total = sum(len(prompts) for prompts in chosen.values())
    if total == too_long:
        raise ModelError(f"{job.inputs['dataset']} holds no prompt that fits the target's {room + 1} positions")
    started_s, done, metrics = time.monotonic(), 0, {}
    job.output.mkdir(parents=True, exist_ok=True)
    tokens = generated = 0
    for name, prompts in chosen.items():
        fitting = sorted((prompt for prompt in prompts if len(prompt.ids) <= room), key=lambda prompt: len(prompt.ids))
        tables = []
        size = settings.batch_size * CHUNK_BATCHES
        for chunk in (fitting[start:start + size] for start in range(0, len(fitting), size)):
            path = _chunk_path(job, name, chunk, settings)
            if not path.exists():
                progress.stop_if_requested()
                table = answer_chunk(runner, chunk, eos_ids, settings)
                generated += sum(map(len, table["answer_token_ids"].to_pylist()))
                _write(table, path)
            tables.append(pq.read_table(path, schema=SCHEMA))
            done += len(chunk)
            progress.report("generate", done, total - too_long, "prompts")
        table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        _write(table, job.output / f"{name}.parquet")
        answers = [len(answer) for answer in table["answer_token_ids"].to_pylist()]
        tokens += sum(answers)
        metrics[f"{name}_rows"] = len(answers)
        metrics[f"{name}_answer_tokens"] = sum(answers)
        stopped = sum(reason == "stop" for reason in table["finish_reason"].to_pylist())
        metrics[f"{name}_stopped_share"] = stopped / max(1, len(answers))
    seconds = time.monotonic() - started_s
    return {**metrics, "prompts_too_long": too_long, "seconds": seconds, "answer_tokens": tokens,
            "tokens_per_second": generated / seconds if generated else 0.0}


def choose_prompts(prompts: list[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """At most `limit` prompts, a seeded choice that does not depend on their order in the file."""
    if limit is None or len(prompts) <= limit:
        return prompts
    by_id = sorted(prompts, key=lambda prompt: prompt.row_id)
    return random.Random(seed).sample(by_id, limit)


def answer_chunk(runner: IncrementalModel, prompts: list[Prompt], eos_ids: frozenset[int],
                 settings: GenerateSettings) -> pa.Table:
    """The rows of the output for these prompts."""
    answers = decode(
        runner, [prompt.ids for prompt in prompts], [prompt.row_id for prompt in prompts], eos_ids=eos_ids,
        temperature=settings.temperature, max_new_tokens=settings.max_new_tokens, batch_size=settings.batch_size,
        seed=settings.seed)
    rows = [{
        "row_id": prompt.row_id, "session_id": prompt.session_id, "prompt_shape": prompt.prompt_shape,
        "prompt_token_ids": prompt.ids, "answer_token_ids": answer.tokens, "finish_reason": answer.finish_reason,
        "temperature": settings.temperature,
    } for prompt, answer in zip(prompts, answers, strict=True)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _chunk_path(job: Job, name: str, chunk: list[Prompt], settings: GenerateSettings) -> Path:
    """A chunk's file, named by all that determines it: a file that exists is the right one."""
    weights = [(path.name, path.stat().st_size, path.stat().st_mtime_ns)
               for path in sorted(job.inputs["target"].glob("*.safetensors"))]
    key = json.dumps([settings.model_dump(), str(job.inputs["target"]), weights,
                      [(prompt.row_id, prompt.ids) for prompt in chunk]])
    folder = job.output / ".work" / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet"


def _write(table: pa.Table, path: Path) -> None:
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)
