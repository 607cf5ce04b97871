"""Operation `reward_model`: trains a model that scores answers, on pairs of a chosen and a rejected answer to one prompt.

Job inputs: `model`, `dataset` (train.parquet, optionally validation.parquet, by which scores are calibrated, and test.parquet,
on which they are measured). Output: a sequence classifier with one label, its tokenizer, reward.json (reward_record) and
metrics.jsonl; with method lora or qlora adapter/ holds adapter and head in PEFT's format."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from transformers import PreTrainedModel

from model_ops.documents import Document, context_of, to_batches
from model_ops.evaluation import ScoredPairs, missed_bounds, reward_report
from model_ops.families import PACKED
from model_ops.jobs import Job, ModelError, Progress, filled
from model_ops.machine import Precision, concrete, products_in
from model_ops.models import load_tokenizer, read_config, refuse_misfit
from model_ops.operations.reward_model_settings import RewardModelSettings
from model_ops.parallel import World
from model_ops.preferences import (
    PairPlan,
    PairStreams,
    Preferences,
    RewardBatch,
    RewardLoss,
    answer_masks,
    read_preferences,
    validation_of_pairs,
)
from model_ops.rendering import Split
from model_ops.rewards import RewardRecord, answer_scores, scorers_tokenizer, segment_ends, with_score_head
from model_ops.training import (
    first_documents,
    load_to_tune,
    plan_validation,
    save_tuned,
    train,
    validated_as_saved,
    without_dropout,
)


def run(job: Job, progress: Progress) -> dict[str, float | int | str]:
    """Trains, measures and saves the model; returns metrics. Raises ModelError for a bad model or dataset, before weights are
    loaded."""
    settings = job.settings_as(RewardModelSettings)
    base, dataset = job.input("model"), job.input("dataset")
    if settings.mesh.cp > 1:
        raise ModelError(f"mesh cp {settings.mesh.cp} would part the answers of a pair; set cp to 1 and use dp_shard or tp")
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    tokenizer, config = load_tokenizer(base), read_config(base)
    refuse_misfit(base, tokenizer)

    def read(split: Split) -> _Pairs | None:
        if not (dataset / f"{split}.parquet").exists():
            return None
        positions, shares = context_of(config), config.get("model_type") in PACKED
        preferences = read_preferences(dataset, split, tokenizer, filled(settings.max_length), "pairs", shares, positions)
        return _Pairs(preferences, dataset / f"{split}.parquet", settings.margin)

    pairs, validation, test = read("train"), read("validation"), read("test")
    if pairs is None or not len(pairs.documents):
        left_out = ", ".join(f"{count} {name}" for name, count in (pairs.counts if pairs else {}).items() if count)
        raise ModelError(
            f"no pair of the dataset can be learnt ({left_out or 'it has no pairs'}): raise max_length, or look at the rows "
            "and at the chat template"
        )
    headed = partial(with_score_head, tokenizer=tokenizer, seed=settings.seed)
    model, numbers = load_to_tune(base, settings, world.loading_device, headed)
    world.place(model, settings.precision)
    plan = PairPlan(pairs.documents, settings, pairs.streams)
    checks = plan_validation(len(plan), plan.settings)
    held = [validation.document(index) for index in range(len(validation.documents))] if validation else []
    held_out = first_documents(held, checks.tokens)
    validate = validation_of_pairs(model, to_batches(held_out, kind=RewardBatch), settings.precision, world)
    with without_dropout(model, progress, "reward_model"):
        result = train(
            model,
            plan,
            RewardLoss(settings.centring),
            settings,
            job.output / ".work",
            progress,
            "reward_model",
            validate=validate,
            validate_every=checks.every,
            world=world,
            validate_first=True,
        )
    numbers |= save_tuned(model, scorers_tokenizer(tokenizer, model.config.vocab_size), base, settings, job.output, headed)
    numbers |= validated_as_saved(model, validate, result, world, progress, "reward_model")
    record = _measured(model, settings, world, pairs, validation, test)
    if world.leads:
        record.write(job.output)
        if record.missed:
            progress.event("warning", message=f"reward_model: it may not grade: {'; '.join(record.missed)}")
    return result.metrics({**pairs.counts, **numbers, **_flat(record)})


COUNTED = (
    "pairs", "equal_answers", "other_prompt", "too_long", "no_answer", "unrenderable_rows", "row_tokens", "shared_tokens",
)  # fmt: skip
"""Counts of the training rows that the metrics show."""


class _Pairs:
    """The pairs of one split, as the loss and the report take them."""

    def __init__(self, preferences: Preferences, file: Path, margin: float):
        graded = np.isfinite(preferences.margins)
        self.documents, self.reasons = preferences.documents, preferences.reasons
        sure = preferences.weights * preferences.confidence
        self.streams = PairStreams(np.where(graded, margin * preferences.margins, 0.0), sure)
        self.counts = {name: preferences.counts[name] for name in COUNTED} | {"graded_pairs": int(graded.sum())}
        columns = [name for name in ("row_id", "session_id", "ts") if name in pq.read_schema(file).names]
        labels = {row["row_id"]: row for row in pq.read_table(file, columns=columns).to_pylist()}
        rows = [labels[row_id] for row_id in preferences.documents.row_ids]
        self.sessions = [row.get("session_id") or row["row_id"] for row in rows]
        self.times = [row.get("ts") for row in rows]

    def document(self, index: int) -> Document:
        """A pair with its streams, named by its index."""
        return replace(self.streams.added_to(self.documents[index], index), row_id=str(index))

    def lengths(self) -> Int[np.ndarray, "pairs 2"]:
        """Tokens of each answer."""
        return np.array([[mask.sum() for mask in answer_masks(pair)] for pair in self.documents], np.int64).reshape(-1, 2)

    def latest(self) -> datetime | None:
        return max((time for time in self.times if time is not None), default=None)


def _measured(
    model: PreTrainedModel,
    settings: RewardModelSettings,
    world: World,
    pairs: _Pairs,
    validation: _Pairs | None,
    test: _Pairs | None,
) -> RewardRecord:
    """Scores the held-out pairs with the weights as they were saved."""
    latest = pairs.latest()

    def scored(of: _Pairs | None) -> ScoredPairs:
        if of is None:
            return ScoredPairs(np.zeros((0, 2)), np.zeros((0, 2), np.int64), [], [], np.zeros(0, bool))
        later = np.array([latest is not None and time is not None and time > latest for time in of.times], dtype=bool)
        return ScoredPairs(_scores(model, of, settings.precision, world), of.lengths(), of.sessions, of.reasons, later)

    chosen, rejected = pairs.lengths().T
    report = reward_report(scored(test), scored(validation), float((chosen > rejected).mean()))
    missed = missed_bounds(report, settings.gate.accuracy, settings.gate.above_longer)
    return RewardRecord(
        temperature=report["temperature"],
        mean=report["mean"] or 0.0,
        deviation=report["deviation"] or 1.0,
        may_grade=not missed,
        missed=missed,
        held_out=report,
    )


def _scores(model: PreTrainedModel, pairs: _Pairs, precision: Precision, world: World) -> Float[np.ndarray, "pairs 2"]:
    """Scores of both answers of every pair; each process computes its share of the batches, and all make as many passes."""
    batches = to_batches([pairs.document(index) for index in range(len(pairs.documents))], kind=RewardBatch)
    rounds = -(-len(batches) // world.data_ranks)
    mine = batches[world.data_rank :: world.data_ranks]
    mine += batches[:1] * (rounds - len(mine))

    @torch.no_grad()
    def work() -> dict[str, list[float]]:
        scores_of: dict[str, list[float]] = {}
        for batch in mine:
            batch = batch.to(world.device)
            with products_in(precision, world.device):
                scores = answer_scores(model, batch, segment_ends(batch))
            scores_of |= zip(batch.row_ids, scores.view(-1, 2).tolist(), strict=True)
        return scores_of

    model.eval()
    by_row = {row: scores for part in world.gather(world.evaluate(model, work)) for row, scores in part.items()}
    return np.array([by_row[str(index)] for index in range(len(pairs.documents))]).reshape(-1, 2)


def _flat(record: RewardRecord) -> dict[str, float | int | str]:
    """The numbers of the report for the manifest."""
    report = record.held_out
    of_all, above, later = report["accuracy"]["all"], report["above_longer"], report["accuracy"]["later"]
    numbers = {
        "held_out_pairs": of_all["pairs"],
        "held_out_accuracy": of_all["value"],
        "held_out_accuracy_low": of_all["low"],
        "held_out_accuracy_high": of_all["high"],
        "longer_wins_accuracy": of_all["longer_wins"],
        "most_training_pairs_accuracy": of_all["most_training_pairs"],
        "above_longer": above["value"],
        "above_longer_low": above["low"],
        "later_pairs": later["pairs"],
        "later_accuracy": later["value"],
        **{
            f"score_{name}": report[name]
            for name in ("temperature", "ece", "calibrated_ece", "spearman", "length_matched_accuracy", "mean", "deviation")
        },
        "may_grade": record.may_grade,
        "may_not_grade_because": "; ".join(record.missed) or None,
    }
    return {name: value for name, value in numbers.items() if value is not None}
