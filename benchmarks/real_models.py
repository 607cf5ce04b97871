"""What the benchmarks on real models share: their arguments, a training in a process of its own, answers, intervals.

given = arguments("real_rft", __doc__).parse_args()      # --models DIR: a folder with the models
run = train("rft", {"model": ..., "prompts": ...}, folder / "out", {"grader": "verifier"})
texts = answers(folder / "out", [asked(question)], max_new_tokens=64)
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.decoding import decode, load_runner, render_prompt
from model_ops.drafting import student
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.rendering import Row

PROJECT = Path(__file__).parents[1]
SMALL, LARGE = "smollm2-135m", "qwen2.5-coder-0.5b"
"""SmolLM2-135M-Instruct and Qwen2.5-Coder-0.5B-Instruct, as their GGUF files hold them."""
THREADS = int(os.environ.get("OMP_NUM_THREADS", 2))
"""Of each process; OMP_NUM_THREADS gives another number."""
Message = dict[str, Any]


def arguments(name: str, doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder with the models, one directory each")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps; nothing is recorded")
    return parser


def model_of(models: Path, name: str) -> Path:
    if not (models / name / "config.json").exists():
        raise SystemExit(f"{models} holds no {name}: give --models the folder in which it lies as a Hugging Face directory")
    return (models / name).resolve()


def asked(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def write(rows: Sequence[dict[str, Any]], folder: Path, split: str = "train") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / f"{split}.parquet")
    return folder


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean and 95 % interval by Student's t; no interval for one value."""
    if len(values) < 2:
        return [round(values[0], 4), None, None]
    reach = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return [round(each, 4) for each in (fmean(values), fmean(values) - reach, fmean(values) + reach)]


def train(
    operation: str, inputs: dict[str, Path], output: Path, settings: dict[str, Any], threads: int = THREADS
) -> dict[str, Any]:
    """A training in a process of its own. Returns peak_mb, steps (benchmarks.our_trainer) and log (metrics.jsonl)."""
    named = {name: str(path) for name, path in inputs.items()}
    job = {"operation": operation, "inputs": named, "output": str(output), "settings": settings, "threads": threads}
    run = process([sys.executable, "-m", "benchmarks.our_trainer"], output, job, PROJECT, threads)
    return {**run, "log": [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]}


def process(command: list[str], output: Path, job: dict[str, Any], where: Path, threads: int, **more: str) -> dict[str, Any]:
    """Runs COMMAND JOB.json RESULT.json, and returns the result. Raises RuntimeError with the last line of a failure."""
    output.parent.mkdir(parents=True, exist_ok=True)
    given, result = output.with_suffix(".job.json"), output.with_suffix(".result.json")
    given.write_text(json.dumps(job))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", **more}
    with output.with_suffix(".log").open("w") as log:
        done = subprocess.run([*command, str(given), str(result)], cwd=where, stdout=log, stderr=log, env=environment)
    if done.returncode:
        last = (output.with_suffix(".log").read_text().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{output.name}: {last[:300]}")
    return json.loads(result.read_text())


def answers(model: Path, prompts: Sequence[list[Message]], max_new_tokens: int, batch_size: int = 64) -> list[str]:
    """The text of the greedy answer to each prompt."""
    return [text for text, _ in sample(model, prompts, max_new_tokens, 0.0, batch_size)]


def sample(
    model: Path,
    prompts: Sequence[list[Message]],
    max_new_tokens: int,
    temperature: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
) -> list[tuple[str, bool]]:
    """The text of one answer to each prompt, and whether it ended by itself."""
    tokenizer, ends = load_tokenizer(model), end_of_text_ids(model)
    found = decode(
        load_runner(model),
        [render_prompt(tokenizer, Row(f"{place}", prompt)) for place, prompt in enumerate(prompts)],
        [f"{place}" for place in range(len(prompts))],
        eos_ids=ends,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        seed=seed,
    )
    texts = [tokenizer.decode([token for token in each.tokens if token not in ends]) for each in found]
    return [(text, each.finish_reason == "stop") for text, each in zip(texts, found, strict=True)]
