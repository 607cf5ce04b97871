"""Held-out loss of every model of an evaluation, and the served model compared with the others on the same rows.

Models with another tokenizer or template split a row into other tokens: then the difference of the row's losses is divided by
the tokens of the first model, over rows that neither model cut."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.documents import Document, RowLoss, held_out_loss, mean_loss, read_documents
from model_ops.drafting import LARGEST_EXPONENT, moves, student, variance
from model_ops.evaluation.measurement import PAIRED, Findings
from model_ops.evaluation.row_tables import LIKELIHOOD_ROWS, finished
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.token_scores import scored_model
from model_ops.files import bare
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer


def recovery_interval(reference: Sequence[RowLoss], served: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of recovery over rows paired by id, in any order; None for a single row. Raises ModelError if the models
    have no row in common."""
    ends = loss_increase_interval(reference, served)
    return None if ends is None else (math.exp(-ends[1]), math.exp(min(-ends[0], LARGEST_EXPONENT)))


def loss_increase_interval(first: Sequence[RowLoss], second: Sequence[RowLoss]) -> tuple[float, float] | None:
    """95 % interval of second's loss - first's loss, in nats per token, over rows paired by id; None for a single row.
    Student's t of the rows' differences, weighted by tokens. Raises ModelError if the models have no row in common."""
    of_first = {row.row_id: row for row in first}
    pairs = [(of_first[row.row_id], row) for row in second if row.row_id in of_first]
    if not pairs:
        raise ModelError(
            "two models have no test row in common, so their losses cannot be compared: evaluate both on the same dataset"
        )
    sums = np.array([[before.nll_sum, before.tokens, after.nll_sum, after.tokens] for before, after in pairs])
    scored = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    if len(scored) < 2:
        return None
    nll, tokens, second_nll, second_tokens = scored.T
    middle = float(second_nll.sum() / second_tokens.sum() - nll.sum() / tokens.sum())
    reach = student(len(scored) - 1) * math.sqrt(variance(moves(second_tokens, second_nll) - moves(tokens, nll)))
    return middle - reach, middle + reach


def mean_interval(scores: Sequence[float], least: float, most: float) -> tuple[float, float] | None:
    """The interval of the mean of scores between `least` and `most`, one per item; None for fewer than two items."""
    values = np.asarray(scores, dtype=np.float64)
    count = len(values)
    if count < 2:
        return None
    mean = float(values.mean())
    if np.ptp(values) == 0:
        low, high = mean - 3 / count, mean + 3 / count
    else:
        reach = student(count - 1) * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = mean - reach, mean + reach
    return max(least, float(low)), min(most, float(high))


OF_DRAFTERS = ("speculator", "champion_speculator", "draft_model")
NOT_SCORED = ("dataset", "answers", "served", "tasks", "preferences", "prompts", *OF_DRAFTERS)
"""Inputs without a held-out loss. Every other input is a model to score, under its name in the job."""

NATS = "nats per token"


@dataclass
class Likelihoods(Findings):
    """Losses of every model on held-out rows."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Loss, perplexity, rows and tokens by name."""
    same_directory: dict[str, str] = field(default_factory=dict)
    """The name under which each role was measured."""
    test_rows: int = 0


def likelihoods(job: Job, settings: EvaluateSettings, progress: Progress) -> Likelihoods:
    """Scores every model, and writes likelihood.parquet. A model other than the target that cannot be scored is named in
    `not_measured`; the target raises ModelError."""
    result = Likelihoods()
    chosen, result.test_rows = _chosen_rows(job, settings)
    losses: dict[str, list[RowLoss]] = {}
    cut: dict[str, set[str]] = {}
    names: dict[Path, str] = {}
    for role in scored_models(job):
        name = names.setdefault(job.inputs[role].resolve(), role)
        if name == role:
            try:
                losses[name], cut[name] = _scored(job, settings, name, chosen, progress)
            except ModelError as error:
                if job.inputs[role].resolve() == job.inputs["target"].resolve():
                    raise
                result.not_measured[f"loss of {role}"] = str(error)
        if name in losses:
            result.same_directory[role] = name
    _write(losses, job.output / "likelihood.parquet")
    result.models = {
        name: {
            "loss": mean_loss(rows),
            "perplexity": math.exp(mean_loss(rows)),
            "rows": len(rows),
            "tokens": sum(row.tokens for row in rows),
        }
        for name, rows in losses.items()
    }
    for role, name in result.same_directory.items():
        result.measure("loss", result.models[name]["loss"], None, result.models[name]["rows"], "rows", NATS, of=role)
    for of, against in [*(("target", other) for other in ("reference", "base", "champion")), *settings.compared]:
        if of in result.same_directory and against in result.same_directory:
            first, second = result.same_directory[against], result.same_directory[of]
            _compare(result, of, against, losses[first], losses[second], cut[first] | cut[second])
    return result


def scored_models(job: Job) -> list[str]:
    """Names of the models to score. A directory with two names is reported under the first: a stage's before `target`."""
    last = [name for name in ("target", "reference", "champion") if name in job.inputs]
    return [*(name for name in job.inputs if name not in (*NOT_SCORED, *last)), *last]


def _chosen_rows(job: Job, settings: EvaluateSettings) -> tuple[set[str], int]:
    """The rows that every model is scored on, and the number of test rows."""
    tokenizer = load_tokenizer(job.inputs["target"])
    documents, counts = read_documents(job.inputs["dataset"], "test", tokenizer, settings.max_length)
    ids = sorted(document.row_id for document in documents)
    if not ids:
        raise ModelError(
            f"{job.inputs['dataset']} holds no test row with an assistant token to predict; build a larger dataset"
        )
    if settings.rows is not None and len(ids) > settings.rows:
        ids = random.Random(settings.seed).sample(ids, settings.rows)
    return set(ids), counts["rows"]


def _scored(
    job: Job, settings: EvaluateSettings, name: str, chosen: set[str], progress: Progress
) -> tuple[list[RowLoss], set[str]]:
    """The loss of each chosen row, and the rows that were cut."""
    directory = job.inputs[name]
    read, _ = read_documents(job.inputs["dataset"], "test", load_tokenizer(directory), settings.max_length)
    documents: list[Document] = sorted((document for document in read if document.row_id in chosen), key=lambda d: d.row_id)
    if not documents:
        raise ModelError(
            f"{directory}: its chat template leaves no test row with an assistant token to predict; compare "
            "with a model that has a chat template of assistant turns"
        )
    scored = finished(
        job,
        f"likelihood-{name}",
        lambda: [
            [row.row_id, row.nll_sum, row.tokens]
            for row in held_out_loss(scored_model(directory), documents, progress=progress, phase=f"held-out loss: {name}")
        ],
    )
    return [RowLoss(*row) for row in scored], {each.row_id for each in documents if len(each) >= settings.max_length}


def _compare(result: Likelihoods, of: str, against: str, other: list[RowLoss], own: list[RowLoss], cut: set[str]) -> None:
    """Adds loss_increase of a pair, and recovery for target and reference."""
    tokens = {row.row_id: row.tokens for row in own}
    if any(tokens.get(row.row_id, row.tokens) != row.tokens for row in other):
        other = [replace(row, tokens=tokens[row.row_id]) for row in other if row.row_id in tokens and row.row_id not in cut]
    paired = {row.row_id for row in other} & set(tokens)
    before, after = ([row for row in rows if row.row_id in paired] for rows in (other, own))
    if not paired:
        result.not_measured[f"loss of {of} against {against}"] = (
            "the two models read no test row in common that neither cuts; raise evaluation.max_length"
        )
        return
    about = {"of": of, "against": against, "method": PAIRED}
    increase, ends = mean_loss(after) - mean_loss(before), loss_increase_interval(before, after)
    result.measure("loss_increase", increase, ends, len(paired), "rows", NATS, **about)
    if against == "reference":
        ends = recovery_interval(before, after)
        result.measure("recovery", math.exp(-increase), ends, len(paired), "rows", "ratio", **about)


def _write(losses: dict[str, list[RowLoss]], path: Path) -> None:
    written = [{"model": name, **asdict(row)} for name, rows in losses.items() for row in rows]
    pq.write_table(pa.Table.from_pylist(written, schema=bare(LIKELIHOOD_ROWS)), path)
