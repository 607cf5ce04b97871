"""Operation `merge`: models of one shape in, their weighted mean (a model soup) out, with weights given or searched.

Job inputs: `model` (the model of the stage before), `base`, `preferred` and `fine_tuned` (earlier models, left out where they
are the same), and for a search `dataset`. The merge has the dtype, config and tokenizer of `model`. Losses of a search are on
disk after each candidate, so a stopped search continues. Ties go to the earlier candidate."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_ops.documents import Document, held_out_loss, mean_loss, validation_documents
from model_ops.files import write_json
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import check_model, load_model, load_tokenizer, read_config, training_device
from model_ops.operations.merging.checkpoints import Checkpoint, refuse_different, write_merged
from model_ops.operations.merging.settings import BASE, PREFERRED, REINFORCED, TRAINED, MergeSettings
from model_ops.training import first_documents

SEARCH_LENGTH = 2_048
"""Tokens after which a held-out row of a search is cut."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Merges the models into job.output; metrics: weights, bytes, and with a search the losses of all candidates. Raises
    ModelError, before anything is written, if the models differ in shape, settings or tokenizer."""
    settings = job.settings_as(MergeSettings)
    source = job.input("model")
    preferred = job.inputs.get("preferred", source)
    before = job.inputs.get("fine_tuned", preferred)
    places = {REINFORCED: source, PREFERRED: preferred, TRAINED: before, BASE: job.inputs.get("base", before)}
    models = [Checkpoint.open(name, places.get(name) or Path(name)) for name in settings.listed]
    form = Checkpoint.open(TRAINED, source)
    refuse_different([form, *(model for model in models if model.directory != source)])
    metrics: dict[str, Any] = {}
    if settings.weights == "search":
        documents = search_documents(job, settings, source)
        search = search_weights(form, models, settings, documents, job.output / ".work" / "search", progress)
        weights = search.weights
        metrics = {
            "search_loss": search.loss,
            "search_tokens": sum(document.target_tokens for document in documents),
            "search_tried": [[*weights, loss] for weights, loss in search.tried],
        }
    else:
        weights = settings.weights or [1.0] * len(models)
    written = write_merged(form, models, weights, job.output, progress)
    check_model(job.output)
    return {"models": settings.listed, "weights": weights, "bytes": written, "tensors": len(form.headers), **metrics}


def search_documents(job: Job, settings: MergeSettings, source: Path) -> list[Document]:
    """Held-out rows to measure candidates on. Raises ModelError if the dataset has none."""
    context = read_config(source).get("max_position_embeddings")
    longest = min(SEARCH_LENGTH, context or SEARCH_LENGTH)
    documents = validation_documents(job.input("dataset"), load_tokenizer(source), longest)
    chosen = first_documents(documents, settings.search_tokens)
    if not any(document.target_tokens for document in chosen):
        raise ModelError(
            "weights: search measures merges on validation rows, and the dataset has none for this model: give "
            "merge.weights, or raise datasets.sft.validation_share"
        )
    return chosen


@dataclass(frozen=True)
class SearchResult:
    """The best candidate."""

    weights: list[float]
    loss: float
    """Nats per target token."""
    tried: list[tuple[list[float], float]]
    """Losses of all candidates, as (weights, loss)."""


def search_weights(
    form: Checkpoint,
    models: Sequence[Checkpoint],
    settings: MergeSettings,
    documents: Sequence[Document],
    scratch: Path,
    progress: Progress,
) -> SearchResult:
    """Measures every candidate on `documents`. scratch: a directory of this job for the candidate and the losses."""
    file = scratch / "losses.json"
    losses: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    tried, all_candidates = [], candidates(settings)
    for done, weights in enumerate(all_candidates):
        key = json.dumps(weights)
        if key not in losses:
            losses[key] = _loss(form, models, weights, documents, scratch / "candidate", progress)
            write_json(file, losses)
        tried.append((weights, losses[key]))
        progress.report("search", done + 1, len(all_candidates), "merges", loss=losses[key])
        progress.stop_if_requested()
    weights, loss = min(tried, key=lambda candidate: candidate[1])
    return SearchResult(weights, loss, tried)


def candidates(settings: MergeSettings) -> list[list[float]]:
    """Weights that a search tries: all points of the simplex with step 1 / search_steps."""
    steps = settings.search_steps
    return [[part / steps for part in parts] for parts in _partitions(steps, len(settings.listed))]


def _partitions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum of `parts` whole numbers from 0."""
    for cuts in itertools.combinations(range(total + parts - 1), parts - 1):
        ends = (-1, *cuts, total + parts - 1)
        yield tuple(after - before - 1 for before, after in itertools.pairwise(ends))


def _loss(
    form: Checkpoint,
    models: Sequence[Checkpoint],
    weights: Sequence[float],
    documents: Sequence[Document],
    directory: Path,
    progress: Progress,
) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    write_merged(form, models, weights, directory, progress)
    model = load_model(directory, device=training_device()).requires_grad_(False)
    loss = mean_loss(held_out_loss(model, documents))
    shutil.rmtree(directory)
    return loss
