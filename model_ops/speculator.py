"""Operation `speculator`: an EAGLE-3 drafter for the target that will be served, trained on its own answers.

    {"operation": "speculator", "inputs": {"target": MODEL, "dataset": ANSWERS}, "output": DIR, "settings": {...}}

ANSWERS is what `generate` wrote. The target's hidden states over them are computed once and cached in output/.work.
The draft vocabulary is counted on the answers; head rows, embedding and norm start from the target's; the embedding
stays frozen. Every token that the target generated is supervised, at every step of the training-time test where its
index exists, against the target's distribution over its full vocabulary. The output directory loads in SGLang and
vLLM, its folder `speculators/` in `vllm serve` (see `model_ops.speculators.export_eagle3`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from model_ops.decoding.incremental import IncrementalModel
from model_ops.errors import ModelError
from model_ops.models.model_directory import load_tokenizer, read_config
from model_ops.models.target import end_of_text_ids, load_runner
from model_ops.progress import Progress
from model_ops.specs import Job, SpeculatorSettings
from model_ops.speculators.draft_model import DraftModel, new_draft_model
from model_ops.speculators.draft_vocabulary import choose_draft_vocabulary
from model_ops.speculators.hidden_states import AnswerRow, HiddenStates, read_answers
from model_ops.speculators.speculator_batches import SpeculatorPlan
from model_ops.speculators.teacher import Teacher
from model_ops.speculators.training_loss import SpeculatorLoss, measure_alpha
from model_ops.training.trainer import train

VALIDATION_ROWS = 128
"""Answers that validation reads at most: enough for alpha to about 0.01, at a small share of a training's time."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Trains and saves the drafter; metrics: alpha by step and expected acceptance length on validation, coverage."""
    settings: SpeculatorSettings = job.typed_settings()
    target, answers, work = job.inputs["target"], job.inputs["dataset"], job.output / ".work"
    rows, left_out = read_answers(answers / "train.parquet", settings.max_length)
    held_out: list[AnswerRow] = []
    if (answers / "validation.parquet").exists():
        held_out = read_answers(answers / "validation.parquet", settings.max_length)[0][:VALIDATION_ROWS]
    if not rows:
        raise ModelError(f"{answers} holds no answer to train the drafter on; generate more")
    runner = load_runner(target)
    model, coverage = new_drafter(target, runner, rows, settings)
    fingerprint = _fingerprint(target)
    states = HiddenStates(work / "states", rows, model.capture, fingerprint)
    states.compute(runner, progress, "speculator: hidden states")
    held_out_states = HiddenStates(work / "states", held_out, model.capture, fingerprint)
    if held_out:
        held_out_states.compute(runner, progress, "speculator: held-out hidden states")
    teacher = Teacher(runner.head.weight, model.target_ids)
    loss = SpeculatorLoss(teacher, settings)

    def validate() -> dict[str, float]:
        return measure_alpha(model, teacher, held_out, held_out_states, settings.num_speculative_tokens)

    plan = SpeculatorPlan(rows, states, settings)
    result = train(model, plan, loss, settings, work, progress, "speculator", validate if held_out else None)
    config = read_config(target)
    target = job.inputs["target"].resolve()
    around_both = os.path.commonpath([target, job.output.resolve()])  # where `vllm serve` of the twin finds its target
    model.save(job.output, settings.num_speculative_tokens, served_dtype(config),
               verifier=os.path.relpath(target, around_both), verifier_architectures=config.get("architectures"))
    shutil.rmtree(work / "states")
    return {
        "loss": result.loss, **result.validation, "steps": result.steps, "tokens": result.tokens,
        "tokens_per_second": result.tokens_per_second, "seconds": result.seconds,
        "peak_memory_mb": result.peak_memory_mb, "draft_vocab_size": len(model.target_ids),
        "draft_coverage": coverage, "rows": len(rows), **left_out,
    }


def new_drafter(target: Path, runner: IncrementalModel, rows: list[AnswerRow],
                settings: SpeculatorSettings) -> tuple[DraftModel, float]:
    """A drafter warm-started from the target, and the share of answer tokens its vocabulary covers."""
    vocab = runner.embedding.shape[0]
    counts = torch.zeros(vocab, dtype=torch.int64)
    for row in rows:
        counts += torch.bincount(torch.tensor(row.ids[row.prompt_tokens:]), minlength=vocab)
    if not settings.drafts_part_of_the_vocabulary:
        return new_draft_model(settings, runner, torch.arange(vocab)), 1.0
    tokenizer = load_tokenizer(target)
    always = {*end_of_text_ids(target), *tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    try:
        ids, coverage = choose_draft_vocabulary(counts, always, settings.draft_vocab_size, settings.draft_coverage)
    except ValueError as error:
        raise ModelError(f"draft_vocab_size cannot be used: {error}") from error
    return new_draft_model(settings, runner, ids), coverage


def served_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype a target's config.json names, in which its drafter is stored; bfloat16 where it names none."""
    name = config.get("dtype") or config.get("torch_dtype")
    return getattr(torch, name) if name in ("bfloat16", "float16", "float32") else torch.bfloat16


def _fingerprint(target: Path) -> str:
    files = sorted(target.glob("*.safetensors"))
    return str([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files])
