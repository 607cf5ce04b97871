"""Validation of preference training: the loss on held-out rows, and the accuracy and margin of held-out pairs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from model_ops.documents import Document, Documents
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.parallel import World
from model_ops.preferences.preference import PreferenceLoss
from model_ops.preferences.preference_batches import Asked, PreferenceBatch, PreferencePlan, shared_batches
from model_ops.preferences.preference_documents import Preferences, answer_masks
from model_ops.training import TrainingSettings, first_documents


def mismatched_answers(preferences: Preferences, max_length: int | None) -> Preferences:
    """A single answer for each row; one that does not fit is cut at its end, in model and reference alike."""
    documents = preferences.documents
    masks = [answer_masks(document) for document in documents]
    prompts = [documents[row].input_ids[: int(np.argmax(masks[row][0]))] for row in range(len(documents))]
    mismatched = []
    for row, prompt in enumerate(prompts):
        others = ((row + step) % len(prompts) for step in range(1, len(prompts)))
        other = next((place for place in others if not np.array_equal(prompts[place], prompt)), row)
        answer = documents[other].input_ids[masks[other][row % len(masks[other])]]
        ids = np.concatenate([prompt, answer])[:max_length]
        mismatched.append(Document(documents.row_ids[row], ids, np.arange(len(ids)) >= len(prompt)))
    return replace(preferences, documents=Documents.gather(mismatched), verdicts=np.ones(len(mismatched), np.int64))


@torch.no_grad()
def mean_log_ratio(model: nn.Module, batches: Iterable[PreferenceBatch], world: World, precision: Precision) -> float:
    """z0 by these batches of mismatched answers, the same on every process."""
    sums = np.zeros(2)
    for batch in batches:
        mine = world.part_of(batch.to(world.device))
        with products_in(precision, world.device):
            nll, labelled = token_nll(model, mine)
        sums += float((-nll - mine.reference[labelled]).double().sum()), len(batch.members) * mine.share
    total, count = world.totals(sums.tolist())
    return max(0.0, total / count) if count else 0.0


class MismatchedPlan:
    """A StatefulSource: the plan's batches, with the z0 of their step. Also a ReferenceReader."""

    def __init__(self, plan: PreferencePlan, model: nn.Module, world: World, settings: TrainingSettings):
        self.plan, self.model, self.world, self.settings = plan, model, world, settings
        self.mismatched = mismatched_answers(plan.preferences, settings.max_length)
        self.reference: Float[np.ndarray, " labels"] | None = None

    def __len__(self) -> int:
        return len(self.plan)

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[PreferenceBatch]:
        """The plan's micro-batches."""
        batches = self.plan.step(index, rank, ranks)
        training = self.model.training
        others, precision = self._others(batches), self.settings.precision
        self.model.eval()
        z0 = self.world.evaluate(self.model, lambda: mean_log_ratio(self.model, others, self.world, precision))
        self.model.train(training)
        return [replace(batch, z0=z0) for batch in batches]

    def heaviest(self, rank: int = 0, ranks: int = 1) -> PreferenceBatch:
        """The plan's heaviest micro-batch; mismatched answers need no memory for a backward pass."""
        return self.plan.heaviest(rank, ranks)

    def state(self) -> dict[str, Any]:
        """Nothing: a step follows from its index and the model's weights."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""

    def asks(self) -> dict[str, Asked]:
        def batches() -> Iterator[PreferenceBatch]:
            for index in self.plan.first_pass:
                yield from self._others(self.plan.step(index, self.world.data_rank, self.world.data_ranks))

        return {**self.plan.asks(), "mismatched_train": Asked(self.mismatched, batches)}

    def take(self, logs: Mapping[str, np.ndarray]) -> None:
        self.plan.take(logs)
        self.reference = logs["mismatched_train"]

    def _others(self, batches: list[PreferenceBatch]) -> Iterator[PreferenceBatch]:
        """The mismatched answers of the batches' rows."""
        members = [member for batch in batches for member in batch.members]
        tokens = self.plan.micro_batch_tokens
        return shared_batches(self.mismatched, members, tokens, self.world, self.reference, share=False)


MEASURED = ("accuracy", "margin")


class HeldOutPreferences:
    """tokens: most tokens of the rows that are measured. batch_tokens: of a forward pass."""

    def __init__(
        self,
        preferences: Preferences,
        tokens: int,
        batch_tokens: int,
        model: nn.Module,
        loss: PreferenceLoss,
        settings: TrainingSettings,
        world: World,
    ):
        lengths = preferences.documents.lengths
        self._members = first_documents(range(len(lengths)), tokens, lambda member: int(lengths[member]))
        self._rows = {"validation": preferences}
        if "kto" in loss.weights:
            self._rows["mismatched_validation"] = mismatched_answers(preferences, settings.max_length)
        self._batch_tokens, self._model, self._loss, self._world = batch_tokens, model, loss, world
        self._precision = settings.precision
        self._reference: Mapping[str, np.ndarray] = {}

    def asks(self) -> dict[str, Asked]:
        return {name: Asked(rows, lambda name=name: self._batches(name)) for name, rows in self._rows.items()}

    def take(self, logs: Mapping[str, np.ndarray]) -> None:
        self._reference = logs

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """The numbers, the same on every process. Without a pair there is a loss only."""
        world, z0 = self._world, 0.0
        if "mismatched_validation" in self._rows:
            z0 = mean_log_ratio(self._model, self._batches("mismatched_validation"), world, self._precision)
        sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for batch in self._batches("validation"):
            mine = world.part_of(replace(batch, z0=z0).to(world.device))
            with products_in(self._precision, world.device):
                output = self._loss(self._model, mine)
            for name, mean in {**output.terms, **{name: output.metrics[name] for name in MEASURED}}.items():
                sums[name] += float(mean.sum), float(mean.count)
        totals = np.array(world.totals(np.concatenate(list(sums.values())).tolist())).reshape(-1, 2)
        means = {name: total / count for name, (total, count) in zip(sums, totals, strict=True) if count}
        terms = [value for name, value in means.items() if name not in MEASURED]
        return {
            "validation_loss": float(sum(terms)),
            **{f"validation_{name}": float(means[name]) for name in MEASURED if name in means},
        }

    def _batches(self, name: str) -> Iterator[PreferenceBatch]:
        return shared_batches(self._rows[name], self._members, self._batch_tokens, self._world, self._reference.get(name))
