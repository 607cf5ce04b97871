"""Log-probabilities of a reference, computed once: the model before its training, at every label of its preference rows.

The model that is about to be trained computes them, so there is never a second one in memory; an adapter that begins as zero
changes nothing. Training rows pass in the micro-batches of the first steps, so that margins of the first step are exactly 0.
The file (4 bytes a label) is written last and as a whole. It names the weights, the documents (token ids, so dataset, tokenizer
and chat template) and the precision that it is of; another one is refused.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

from model_ops.files import renamed_when_complete, target_digest
from model_ops.jobs import ModelError, Progress
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.parallel import World
from model_ops.preferences.preference_batches import Asked, ReferenceReader, label_starts

Logs = dict[str, np.ndarray]
"""Name of the rows -> float32 log-probability of each label, in order (preference_batches.label_starts)."""
MISMATCH = {
    "weights": "of other weights",
    "documents": "of other documents (another dataset, tokenizer or chat template)",
    "precision": "in another precision",
}


class ReferenceLogProbs:
    """The file of one job. folder: of its work. base: directory of the reference."""

    def __init__(self, folder: Path, base: Path, precision: Precision):
        self.path, self.base, self.precision = folder / "reference.safetensors", base, precision

    def give(self, readers: Sequence[ReferenceReader], model: nn.Module, world: World, progress: Progress) -> None:
        """Gives each reader what it asks for: from the file, or computed by the model, which is the reference as yet. Every
        process makes the same call. Raises ModelError for a file of another reference."""
        asked = {name: rows for reader in readers for name, rows in reader.asks().items()}
        key = self._key(asked)
        logs = self._read(key) or self._write(key, asked, model, world, progress)
        for reader in readers:
            reader.take(logs)

    def _read(self, key: Mapping[str, str]) -> Logs | None:
        """What the file holds; None without it."""
        if not self.path.exists():
            return None
        with safe_open(self.path, "numpy") as file:
            known = file.metadata() or {}
        for name, wanted in key.items():
            if known.get(name) != wanted:
                raise ModelError(
                    f"{self.path} holds log-probabilities {MISMATCH[name]}, so margins would be measured from another model: "
                    "remove it, with the checkpoints beside it, to begin this training again"
                )
        return load_file(self.path)

    def _write(
        self, key: Mapping[str, str], asked: Mapping[str, Asked], model: nn.Module, world: World, progress: Progress
    ) -> Logs:
        """Computes and keeps them."""
        model.eval()

        def computed() -> Logs:
            return {name: self._computed(model, rows, name, world, progress) for name, rows in asked.items()}

        logs = world.evaluate(model, computed)
        if world.leads:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with renamed_when_complete(self.path) as temporary:
                save_file(logs, temporary, metadata=dict(key))
        return logs

    def _computed(self, model: nn.Module, rows: Asked, name: str, world: World, progress: Progress) -> np.ndarray:
        def after_batch(done: int) -> None:
            progress.report(f"reference, {name}", done, max(done, len(rows.preferences.documents)), "rows")
            if world.mesh is None:
                progress.stop_if_requested()

        return log_probs_of(model, rows, self.precision, world, after_batch)

    def _key(self, asked: Mapping[str, Asked]) -> dict[str, str]:
        documents = hashlib.sha256()
        for name, rows in sorted(asked.items()):
            held = rows.preferences.documents
            documents.update(f"{name} {held.row_ids} {sorted(held.branches.items())}".encode())
            for stream in (held.lengths, held.input_ids, held.targets):
                documents.update(np.ascontiguousarray(stream).tobytes())
        return {"weights": target_digest(self.base), "documents": documents.hexdigest(), "precision": self.precision}


@torch.no_grad()
def log_probs_of(
    model: nn.Module, rows: Asked, precision: Precision, world: World, after_batch: Callable[[int], None] = lambda done: None
) -> Float[np.ndarray, " labels"]:
    """A model's log-probability of each label; 0 where no batch holds it. after_batch: called with the number of rows read.

    The last step of a pass may read rows of the next one, also those that another process has read: such a label's
    log-probability is the mean over the processes that read it."""
    logs, done = torch.zeros(2, int(label_starts(rows.preferences)[-1]), device=world.device), 0
    for batch in rows.batches():
        mine = world.part_of(batch.to(world.device))
        with products_in(precision, world.device):
            nll, labelled = token_nll(model, mine)
        logs[:, mine.places[labelled]] = torch.stack([-nll, torch.ones_like(nll)])
        done += len(batch.members) * world.data_ranks
        after_batch(done)
    total, readers = world.total(logs)
    return (total / readers.clamp(min=1)).cpu().numpy()
