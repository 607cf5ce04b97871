"""Runs every operation on a tiny model of a family, from the base model to the parts of a release.

found = try_operations("gemma2", folder / "gemma2", write_material(folder), verify)    # {"full SFT": None, "LoRA": "why"}"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import FAILURES, Defect, load_tokenizer, save_model, tiny_model
from model_ops.operations import distill, evaluate, generate, quantize, sft, speculator
from model_ops.operations.tiny_base import train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings

TRIALS = ("full SFT", "LoRA", "distillation", "int8", "generation", "EAGLE-3", "evaluation", "release")
"""In the order of a run. release: target and drafter pass the checks of `millrace verify`, which a release needs."""

LAYERS, VOCABULARY = 4, 300
"""Size of the tiny models: EAGLE-3 reads three boundaries between blocks."""

STEPS = {"steps": 2, "tokens_per_step": 256, "max_length": 128}
ROWS = {"train": 8, "validation": 2, "test": 4}


@dataclass(frozen=True)
class Material:
    """Folders of a tokenizer and of a chat dataset."""

    tokenizer: Path
    dataset: Path


def write_material(folder: Path) -> Material:
    """Writes a small tokenizer and a chat dataset with one and two turns."""
    tokenizer = train_tokenizer(
        ["what is three and four\n" * 5, "the sum is seven\n" * 5],
        TinyBaseSettings(vocab_size=512).model_copy(update={"vocab_size": VOCABULARY}),
    )
    material = Material(folder / "tokenizer", folder / "dataset")
    tokenizer.save_pretrained(material.tokenizer)
    material.dataset.mkdir(parents=True)
    for split, rows in ROWS.items():
        records = [_chat(f"{split}-{row}", row) for row in range(rows)]
        schema = pa.schema([(name, pa.string()) for name in records[0]])
        pq.write_table(pa.Table.from_pylist(records, schema=schema), material.dataset / f"{split}.parquet")
    return material


def try_operations(
    family: str, folder: Path, material: Material, verify: Callable[[Path, Path | None], list[Defect]]
) -> dict[str, str | None]:
    """Tries every operation on a tiny model of a family of the table; the operation's name -> None, or why it failed. verify:
    `model_ops.verify.verify`, which stands above this room. An operation whose input failed runs on the latest model that was
    made, so that one failure is not reported as many."""
    tokenizer = load_tokenizer(material.tokenizer)
    outputs = {"base": folder / "base"}
    model = tiny_model(family, "eager", vocab_size=VOCABULARY, num_hidden_layers=LAYERS)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    outputs["base"].mkdir(parents=True)
    save_model(model, tokenizer, outputs["base"])
    results: dict[str, str | None] = {}

    def attempt(
        name: str, kind: str, run: Callable[[Job, Progress], dict[str, Any]], settings: dict[str, Any], **inputs: Path
    ) -> None:
        output = folder / kind
        try:
            numbers = run(Job(operation=kind, output=output, inputs=inputs, settings=settings), Progress())
            wrong = [key for key, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)]
            changed = [key for key, share in numbers.items() if key.startswith("greedy_identical") and share != 1.0]
            results[name] = f"{wrong[0]} is not finite" if wrong else "a drafter changed greedy text" if changed else None
        except ModelError as error:
            results[name] = str(error).replace(f"{folder}/", "")
        except FAILURES as error:
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if results[name] is None:
            outputs[kind] = output

    dataset = material.dataset
    attempt("full SFT", "sft", sft.run, STEPS, model=outputs["base"], dataset=dataset)
    tuned = outputs.get("sft", outputs["base"])
    attempt("LoRA", "lora", sft.run, {**STEPS, "method": "lora"}, model=outputs["base"], dataset=dataset)
    attempt(
        "distillation", "distill", distill.run, {**STEPS, "layers": 0.5, "label_weight": 0.5}, teacher=tuned, dataset=dataset
    )
    attempt("int8", "quantize", quantize.run, {}, model=tuned)
    target = outputs.get("quantize", tuned)
    attempt("generation", "generate", generate.run, {"max_new_tokens": 12}, target=target, dataset=dataset)
    answers = outputs.get("generate")
    if answers is None:
        results["EAGLE-3"] = "there are no generated answers to learn from"
    else:
        attempt("EAGLE-3", "speculator", speculator.run, {**STEPS, "ttt_steps": 2}, target=target, dataset=answers)
    drafter = {"speculator": outputs["speculator"]} if "speculator" in outputs else {}
    attempt(
        "evaluation",
        "evaluate",
        evaluate.run,
        {"max_new_tokens": 8, "prompts": 4},
        base=outputs["base"],
        student=tuned,
        target=target,
        reference=tuned,
        dataset=dataset,
        **drafter,
    )
    problems = [*verify(target, None), *(verify(drafter["speculator"], target) if drafter else [])]
    missing = [name for name in TRIALS[:-1] if results[name] is not None]
    results["release"] = str(problems[0]) if problems else f"{missing[0]} failed" if missing else None
    return results


def _chat(name: str, row: int) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"what is {row} and {row + 1} " * (1 + row % 3)},
        {"role": "assistant", "content": f"the sum is {2 * row + 1}"},
    ]
    if row % 2:
        messages += [{"role": "user", "content": "again"}, {"role": "assistant", "content": "the same"}]
    return {
        "row_id": name,
        "session_id": f"s{row}",
        "prompt_shape": "two turns" if row % 2 else "one turn",
        "messages": json.dumps(messages),
        "tools": None,
    }
