"""Validation of preference training: the loss on held-out rows, and the accuracy and margin of held-out pairs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from model_ops.machine import products_in
from model_ops.parallel import World
from model_ops.preferences.mismatched_answers import mean_log_ratio, mismatched_answers
from model_ops.preferences.preference import PreferenceLoss
from model_ops.preferences.preference_batches import Asked, PreferenceBatch, shared_batches
from model_ops.preferences.preference_documents import Preferences
from model_ops.training import TrainingSettings, first_documents

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
