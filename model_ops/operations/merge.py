"""Operation `merge`: models of one shape in, one model out: soups, slerp, task arithmetic, TIES, DARE.

    python -m model_ops.worker job.json      # {"operation": "merge", "inputs": {"model": DIR, "base": DIR}, "output": DIR, ...}

Job inputs: `model` (the model of the stage before), `base` (the base model; left out where it is the same), and for a search of
weights `dataset`. Directories that settings.models lists are read in place. Tensors are merged one by one in float32
(`model_ops.merging`), so memory holds one tensor of each model; the merge has the dtype, config and tokenizer of `model`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.merging.checkpoints import Checkpoint, refuse_different, write_merged
from model_ops.merging.merge_plan import given_weights, tensor_merge
from model_ops.merging.search import search_weights
from model_ops.merging.settings import BASE, FROM_BASE, TRAINED, MergeSettings
from model_ops.models.model_directory import check_model, load_tokenizer, read_config
from model_ops.progress import Progress
from model_ops.training.chats import validation_documents
from model_ops.training.documents import Document
from model_ops.training.validation import first_documents

SEARCH_LENGTH = 2_048
"""Tokens after which a held-out row of a search is cut."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Merges the models into job.output; metrics: weights, scale, bytes, and with a search the losses of all candidates.

    Raises ModelError, before anything is written, if the models differ in shape, settings or tokenizer.
    """
    settings = job.settings_as(MergeSettings)
    source = job.input("model")
    places = {TRAINED: source, BASE: job.inputs.get("base", source)}
    names = [BASE, *settings.listed] if settings.method in FROM_BASE else settings.listed
    models = [Checkpoint.open(name, places.get(name) or Path(name)) for name in names]
    form = Checkpoint.open(TRAINED, source)
    refuse_different([form, *(model for model in models if model.directory != source)])
    told: dict[str, Any] = {}
    if settings.weights == "search":
        documents = search_documents(job, settings, source)
        found = search_weights(form, models, settings, documents, job.output / ".work" / "search", progress)
        weights, scale = found.weights, found.scale
        told = {"search_loss": found.loss, "search_tokens": sum(document.target_tokens for document in documents),
                "search_tried": [[*weights, scale, loss] for weights, scale, loss in found.tried]}
    else:
        weights, scale = given_weights(settings)
    written = write_merged(form, models, tensor_merge(settings, weights, scale), job.output, progress)
    check_model(job.output)
    return {"models": names, "weights": weights, "scale": scale, "bytes": written, "tensors": len(form.headers), **told}


def search_documents(job: Job, settings: MergeSettings, source: Path) -> list[Document]:
    """Held-out rows to measure candidates on. Raises ModelError if the dataset has none."""
    context = read_config(source).get("max_position_embeddings")
    longest = min(SEARCH_LENGTH, context or SEARCH_LENGTH)
    documents = validation_documents(job.input("dataset"), load_tokenizer(source), longest)
    chosen = first_documents(documents, settings.search_tokens)
    if not any(document.target_tokens for document in chosen):
        raise ModelError("weights: search measures merges on validation rows, and the dataset has none for this model: give "
                         "merge.weights, or raise datasets.sft.validation_share")
    return chosen
