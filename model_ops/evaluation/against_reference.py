"""The served model against its unquantized form: distributions, long contexts, and which block costs most.

divergence: KL(reference || target) in nats per answer token, over the reference's TOP_K likeliest tokens and one bucket for all
others. Rows of ordinary length can hide what rounding does to long ones (arXiv 2505.20276), so test rows are joined to contexts
as long as `max_length` allows, and only the second half of each counts."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from model_ops.documents import Document, RowLoss, held_out_loss, mean_loss, read_documents
from model_ops.evaluation.likelihoods import loss_increase_interval, recovery_interval
from model_ops.evaluation.measurement import LONG_CONTEXT, PAIRED, Findings
from model_ops.evaluation.row_tables import finished
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.token_scores import scored_model
from model_ops.families import layer_list
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer, read_config
from model_ops.objectives import RowDivergence, TeacherCache, mean_divergence, row_divergences
from model_ops.training import first_documents

TOP_K = 128
MEASURED_TOKENS, BLOCK_TOKENS = 32_768, 4_096
"""Most tokens of test rows that distributions are compared on; the same for each block."""
LONG_CONTEXTS, FEWEST_LONG = 8, 2
WORST_ROWS = 10
COSTLY = 0.005
"""Divergence in nats a token from which blocks are measured: half of what the gate of 0.99 lets a loss grow."""


@dataclass
class AgainstReference(Findings):
    """Comparison of the served model with its unquantized reference."""

    worst_rows: list[dict[str, Any]] = field(default_factory=list)
    """row_id, divergence in nats a token, tokens."""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """Block, and the divergence that is gone when the block has its unquantized weights, in nats a token."""

    @property
    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {"worst_rows": self.worst_rows, "blocks": self.blocks}


def against_reference(job: Job, settings: EvaluateSettings, progress: Progress) -> AgainstReference:
    """Compares target and reference; nothing where they are one directory, or where there is no reference."""
    result = AgainstReference()
    if "reference" not in job.inputs or job.inputs["reference"].resolve() == job.inputs["target"].resolve():
        return result
    try:
        documents, long = _documents(job, settings)
        parts = finished(job, "against-reference", lambda: _measured(job, settings, documents, long, progress))
    except ModelError as error:
        result.not_measured["divergence of target against reference"] = str(error)
        return result
    rows = [RowDivergence(*row) for row in parts["rows"]]
    _measure_rows(result, rows)
    worst = sorted((row for row in rows if row.tokens), key=lambda row: -row.divergence / row.tokens)[:WORST_ROWS]
    result.worst_rows = [
        {"row_id": row.row_id, "divergence": row.divergence / row.tokens, "tokens": row.tokens} for row in worst
    ]
    result.blocks = parts["blocks"]
    before, after = ([RowLoss(*row) for row in each] for each in parts["long"])
    if before:
        value, ends = math.exp(mean_loss(before) - mean_loss(after)), recovery_interval(before, after)
        about = {"of": "target", "against": "reference", "on": LONG_CONTEXT, "method": PAIRED}
        result.measure("recovery", value, ends, len(before), "contexts", "ratio", **about)
    else:
        result.not_measured[LONG_CONTEXT] = (
            f"the test rows are too short for {FEWEST_LONG} contexts of "
            f"{longest(job, settings)} tokens; add test rows, or lower evaluation.max_length"
        )
    return result


def _documents(job: Job, settings: EvaluateSettings) -> tuple[list[Document], list[Document]]:
    """(test rows to compare distributions on, long contexts), both a seeded choice."""
    tokenizer = load_tokenizer(job.inputs["target"])
    if load_tokenizer(job.inputs["reference"]).get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            "target and reference have different tokenizers, so their distributions cannot be compared: give "
            "the target's own unquantized form"
        )
    read, _ = read_documents(job.inputs["dataset"], "test", tokenizer, settings.max_length)
    shuffled = sorted((document for document in read if document.target_tokens), key=lambda document: document.row_id)
    random.Random(settings.seed).shuffle(shuffled)
    return first_documents(shuffled[: settings.rows], MEASURED_TOKENS), long_contexts(shuffled, longest(job, settings))


def longest(job: Job, settings: EvaluateSettings) -> int:
    """Tokens of a long context: as many as evaluation reads, at most the target's positions."""
    return min(settings.max_length, read_config(job.inputs["target"]).get("max_position_embeddings") or settings.max_length)


def long_contexts(documents: Sequence[Document], length: int, most: int = LONG_CONTEXTS) -> list[Document]:
    """Documents of `length` tokens, each of several joined ones; targets of the first half do not count. None if the documents
    fill fewer than FEWEST_LONG."""
    contexts: list[Document] = []
    ids, targets, held = [], [], 0
    for document in documents:
        trunk = document.segments[0].length  # branches continue a trunk, and cannot be joined to something else
        ids.append(document.input_ids[:trunk])
        targets.append(document.targets[:trunk])
        held += trunk
        if held >= length:
            counted = np.concatenate(targets)[:length]
            counted[: length // 2] = False
            if counted.any():
                contexts.append(Document(f"long-{len(contexts)}", np.concatenate(ids)[:length], counted))
            ids, targets, held = [], [], 0
        if len(contexts) == most:
            break
    return contexts if len(contexts) >= FEWEST_LONG else []


def _measured(
    job: Job, settings: EvaluateSettings, documents: list[Document], long: list[Document], progress: Progress
) -> dict[str, Any]:
    """Rows, losses of long contexts of (reference, target), and blocks, as JSON values."""
    folder = job.output / ".work" / "reference"
    losses = []
    reference = scored_model(job.inputs["reference"])
    cache = TeacherCache.write(
        folder, reference, documents, TOP_K, 1.0, "float32", after_batch=_reports(progress, "distributions of the reference")
    )
    losses.append(_losses(reference, long))
    del reference
    taught = [cache.added_to(document, index) for index, document in enumerate(documents)]
    target = scored_model(job.inputs["target"])
    rows = row_divergences(target, taught)
    losses.append(_losses(target, long))
    blocks = []
    if mean_divergence(rows) >= COSTLY:
        blocks = block_costs(target, job.inputs["reference"], first_documents(taught, BLOCK_TOKENS), progress)
    return {"rows": [list(asdict(row).values()) for row in rows], "long": losses, "blocks": blocks}


def _losses(model: nn.Module, documents: list[Document]) -> list[list[Any]]:
    return [list(asdict(row).values()) for row in held_out_loss(model, documents)] if documents else []


def _reports(progress: Progress, phase: str):
    def after_batch(done: int, total: int) -> None:
        progress.report(phase, done, total, "tokens")
        progress.stop_if_requested()

    return after_batch


def block_costs(target: nn.Module, reference: Path, documents: Sequence[Document], progress: Progress) -> list[dict[str, Any]]:
    """For each block, the costliest first: the divergence in nats a token that is gone when it has its unquantized weights."""
    float_blocks = layer_list(scored_model(reference))[1]
    blocks, whole = layer_list(target)[1], mean_divergence(row_divergences(target, documents))
    costs = []
    for index, exact in enumerate(float_blocks):
        progress.report("blocks", index, len(blocks), "blocks")
        progress.stop_if_requested()
        quantized, blocks[index] = blocks[index], exact
        costs.append({"block": index, "cost": whole - mean_divergence(row_divergences(target, documents))})
        blocks[index] = quantized
    return sorted(costs, key=lambda each: -each["cost"])


def _measure_rows(result: Findings, rows: list[RowDivergence]) -> None:
    """Adds divergence and agreement, with intervals over rows."""
    nothing = [RowLoss(row.row_id, 0.0, row.tokens) for row in rows]
    diverged = [RowLoss(row.row_id, row.divergence, row.tokens) for row in rows]
    agreed = [RowLoss(row.row_id, float(row.agreed), row.tokens) for row in rows]
    about = {"of": "target", "against": "reference", "method": PAIRED}
    ends = loss_increase_interval(nothing, diverged)
    result.measure("divergence", mean_loss(diverged), ends, len(rows), "rows", "nats per token", **about)
    ends = loss_increase_interval(nothing, agreed)
    result.measure("agreement", mean_loss(agreed), ends, len(rows), "rows", "share", **about)
