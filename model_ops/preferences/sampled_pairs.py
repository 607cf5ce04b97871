"""Steps that learn from pairs of the model's own answers: a StatefulSource of PreferenceBatch.

Step i learns from its share of the pairs of round i // sync_steps. The first step of a round lets the present model answer; the
others learn from the same answers, a few updates later (semi-online: Lanchantin et al., arXiv 2506.21495). The reference stays
the model before the training, and reads each step's pairs once, in the micro-batches of the step.

The state of the source is the log of `rounds`: a run that continues finds the answers of its round there. On a mesh the first
process has it, and each samples and learns its share.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from model_ops.documents import MICRO_BATCH_TOKENS, Document, Documents
from model_ops.jobs import ModelError
from model_ops.parallel import World
from model_ops.preferences.preference_batches import Asked, PreferenceBatch, shared_batches
from model_ops.preferences.preference_documents import PAIR, Preferences, answers_document
from model_ops.preferences.reference_log_probs import log_probs_of
from model_ops.preferences.sampled_rounds import SampledPair, SampledRounds
from model_ops.training import StartWeights, TrainingSettings


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
