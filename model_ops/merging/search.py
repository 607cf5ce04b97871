"""Finds the weights of a merge by the loss of held-out rows.

    found = search_weights(form, models, settings, documents, scratch, progress)
    found.weights, found.scale, found.loss, found.tried

Every candidate of the grid is written to a scratch directory, loaded and measured: memory of one model, and one merge and one
pass over the rows for each. Losses are kept after each candidate, so a stopped search continues. Ties go to the earlier one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model_ops.atomic_files import write_json
from model_ops.merging.checkpoints import Checkpoint, TensorMerge, write_merged
from model_ops.merging.merge_plan import candidates, tensor_merge
from model_ops.merging.settings import MergeSettings
from model_ops.models.model_directory import load_model, training_device
from model_ops.progress import Progress
from model_ops.training.documents import Document
from model_ops.training.likelihood import held_out_loss, mean_loss


@dataclass(frozen=True)
class Found:
    """The best candidate."""

    weights: list[float]
    scale: float
    loss: float
    """Nats per target token."""
    tried: list[tuple[list[float], float, float]]
    """Losses of all candidates, as (weights, scale, loss)."""


def search_weights(form: Checkpoint, models: Sequence[Checkpoint], settings: MergeSettings, documents: Sequence[Document],
                   scratch: Path, progress: Progress) -> Found:
    """Measures every candidate on `documents`. scratch: a directory of this job for the candidate and the losses."""
    kept = scratch / "losses.json"
    losses: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    tried, all_candidates = [], candidates(settings)
    for done, (weights, scale) in enumerate(all_candidates):
        key = json.dumps([weights, scale])
        if key not in losses:
            merge = tensor_merge(settings, weights, scale)
            losses[key] = _loss(form, models, merge, documents, scratch / "candidate", progress)
            write_json(kept, losses)
        tried.append((weights, scale, losses[key]))
        progress.report("search", done + 1, len(all_candidates), "merges", loss=losses[key])
        progress.stop_if_requested()
    weights, scale, loss = min(tried, key=lambda candidate: candidate[2])
    return Found(weights, scale, loss, tried)


def _loss(form: Checkpoint, models: Sequence[Checkpoint], merge: TensorMerge, documents: Sequence[Document], directory: Path,
          progress: Progress) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    write_merged(form, models, merge, directory, progress)
    model = load_model(directory, device=training_device()).requires_grad_(False)
    loss = mean_loss(held_out_loss(model, documents))
    shutil.rmtree(directory)
    return loss
