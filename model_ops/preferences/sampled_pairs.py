"""Steps that learn from pairs of the model's own answers, and what the reference, the model before the training, says of them.

Step i learns from its share of the pairs of round i // sync_steps: the first step of a round samples, the others learn from the
same answers (semi-online: Lanchantin et al., arXiv 2506.21495). The state is the log of `rounds`, which on a mesh the first
process has."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

from model_ops.documents import MICRO_BATCH_TOKENS, Document, Documents
from model_ops.files import renamed_when_complete, target_digest
from model_ops.jobs import ModelError, Progress
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.parallel import World
from model_ops.preferences.preference_batches import Asked, PreferenceBatch, ReferenceReader, label_starts, shared_batches
from model_ops.preferences.preference_documents import PAIR, Preferences, answers_document
from model_ops.preferences.sampled_rounds import SampledPair, SampledRounds
from model_ops.training import StartWeights, TrainingSettings

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
    """A model's log-probability of each label; 0 where no batch holds it. after_batch: called with the number of rows read. The
    last step of a pass may read rows of the next one, also those that another process has read: such a label's log-probability
    is the mean over the processes that read it."""
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


class SampledPairPlan:
    """shares: whether the rejected answer continues the chosen one's prompt (model_ops.preferences.preference_documents)."""

    def __init__(
        self,
        rounds: SampledRounds,
        model: nn.Module,
        settings: TrainingSettings,
        world: World,
        shares: bool,
        needs_reference: bool,
    ):
        self.rounds, self._model, self._world, self._shares = rounds, model, world, shares
        self.settings = settings
        self._steps = settings.steps_over(len(rounds.prompts), rounds.settings.prompts_per_step)
        self.micro_batch_tokens = settings.micro_batch_tokens or max(MICRO_BATCH_TOKENS, settings.max_length or 0)
        self._precision = settings.precision
        self._start = StartWeights(model) if needs_reference else None
        self._held: tuple[int, list[Document]] = (-1, [])

    def __len__(self) -> int:
        return self._steps

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[PreferenceBatch]:
        """The step's share of its round's pairs; where there are fewer pairs than steps, one of them again."""
        number, place = divmod(index, self.rounds.settings.sync_steps)
        if self._held[0] != number:
            pairs = self._world.conduct(lambda: self.rounds.pairs(number))
            self._held = (number, [self._document(pair) for pair in pairs])
        held, sync_steps = self._held[1], self.rounds.settings.sync_steps
        steps = min(sync_steps, self._steps - number * sync_steps)
        mine = held[place * len(held) // steps : (place + 1) * len(held) // steps] or [held[place % len(held)]]
        return self._batches(mine)

    def heaviest(self, rank: int = 0, ranks: int = 1) -> PreferenceBatch:
        """As many pairs of the longest prompt with the longest answers as a step can have and a micro-batch holds."""
        prompt = max(self.rounds.prompts, key=lambda prompt: len(prompt.ids))
        answers = np.zeros((2, self.rounds.settings.max_new_tokens), np.int32)
        answers[1] += 1
        document = self._document(SampledPair(prompt, *answers))
        each, every = self.rounds.settings.prompts_per_step, self.rounds.settings.sync_steps
        # a round asks until it has a pair for each step, and its last chunk is a whole one; the last round has the fewest steps
        most = math.ceil((each * every + every - 1) / (self._steps % every or every))
        return self._batches([document] * max(1, min(self.micro_batch_tokens // len(document), most)), reads=False)[0]

    def state(self) -> dict[str, Any]:
        """Nothing: the log has it."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""

    def _document(self, pair: SampledPair) -> Document:
        prompt = np.array(pair.prompt.ids, np.int32)
        sides = [np.concatenate([prompt, answer]) for answer in (pair.chosen, pair.rejected)]
        contexts = [(ids, np.arange(len(ids)) >= len(prompt)) for ids in sides]
        document = answers_document(pair.prompt.row_id, contexts, 2**31, None, self._shares, Counter())
        if document is None:
            raise ModelError(f"the two answers to row {pair.prompt.row_id} have the same tokens. This is a bug: report it")
        return document

    def _batches(self, documents: Sequence[Document], reads: bool = True) -> list[PreferenceBatch]:
        ones = np.ones(len(documents))
        preferences = Preferences(
            Documents.gather(documents), np.full(len(ones), PAIR), ones, ones, ones * np.nan, ["graded"] * len(ones), {}
        )
        batches = partial(shared_batches, preferences, range(len(ones)), self.micro_batch_tokens, self._world)
        if self._start is None or not reads:
            return list(batches())
        with self._start.in_place():
            asked = partial(log_probs_of, self._model, Asked(preferences, batches), self._precision, self._world)
            reference = self._world.evaluate(self._model, asked)
        return list(batches(reference))
