"""Batches of preference rows: which labels belong to which answer, and what the reference says of each label.

plan = PreferencePlan(preferences, settings, world)     # a BatchSource of PreferenceBatch
plan.reference = reference                              # log-probabilities by label, once they are known
batches = shared_batches(preferences, members, tokens, world)    # for an evaluation: this process's, as many on each"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.documents import Document, PackedRows, to_batch
from model_ops.parallel import World
from model_ops.preferences.preference_documents import PAIR, Preferences, answer_masks
from model_ops.tensors import Batch
from model_ops.training import TrainingSettings

NO_ANSWER = -1
NONE = partial(torch.zeros, 0)
"""Of a batch that `preference_batch` has not filled yet."""


@dataclass(frozen=True, kw_only=True)
class PreferenceBatch(Batch):
    """A batch of preference rows. Answers are numbered in the order of their documents, a pair's chosen one first. What has a
    value for each answer describes the whole row, also where processes share its tokens."""

    answers: Int[Tensor, "tokens 2"] = field(metadata={"padding": NO_ANSWER})
    """The answers that a position's label belongs to: two in a pair's common beginning, NO_ANSWER for none."""
    places: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    """Place of the label among all labels of all documents."""
    reference: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """Log-probability of the label by the reference; 0 before it is known."""
    desirable: Tensor = field(default_factory=NONE)
    """bool [answers]: chosen, or desirable by itself."""
    others: Tensor = field(default_factory=NONE)
    """int [answers]: the pair's other answer; NO_ANSWER for a single answer."""
    answer_tokens: Tensor = field(default_factory=NONE)
    """int [answers]: labels of each answer."""
    answer_weights: Tensor = field(default_factory=NONE)
    """float64 [answers]: weight of its row; 0 in a silenced batch."""
    confidence: Tensor = field(default_factory=NONE)
    """float64 [answers]: how sure the source of its verdict is."""
    members: tuple[int, ...] = ()
    """Indices of the documents."""
    z0: float = 0.0
    """How far the model is from the reference (model_ops.preferences.held_out_preferences)."""

    def silenced(self) -> Self:
        """As Batch.silenced, without members."""
        return replace(super().silenced(), answer_weights=torch.zeros_like(self.answer_weights), members=())

    @property
    def share(self) -> float:
        """Part of what is counted for the whole row that is this process's, so that the processes' counts add up."""
        return 1.0 if self.context is None else 1 / self.context.size


def label_starts(preferences: Preferences) -> Int[np.ndarray, " documents_and_one"]:
    """Place of each document's first label among all labels; the last one is their number."""
    return np.concatenate([[0], np.cumsum(preferences.documents.target_tokens)])


def preference_batch(
    preferences: Preferences,
    members: Sequence[int],
    starts: Int[np.ndarray, " documents_and_one"],
    reference: Float[np.ndarray, " labels"] | None,
) -> PreferenceBatch:
    """The batch of some documents. starts: of label_starts."""
    documents, desirable, others = list[Document](), list[bool](), list[int]()
    tokens, rows = list[int](), list[int]()
    for member in members:
        document, first = preferences.documents[member], len(desirable)
        masks = [mask[1:] for mask in answer_masks(document)]  # position t predicts token t + 1
        answers = np.full((len(document), 2), NO_ANSWER)
        places, of_reference = np.zeros(len(document), np.int64), np.zeros(len(document), np.float32)
        for side, mask in enumerate(masks):
            answers[:-1, side][mask] = first + side
            tokens.append(int(mask.sum()))
        labels = np.flatnonzero(document.targets[1:])
        places[labels] = np.arange(starts[member], starts[member + 1])
        if reference is not None:
            of_reference[labels] = reference[starts[member] : starts[member + 1]]
        streams = {"answers": answers, "places": places, "reference": of_reference}
        documents.append(replace(document, streams=streams))
        is_pair = preferences.verdicts[member] == PAIR
        desirable += [True, False] if is_pair else [bool(preferences.verdicts[member])]
        others += [first + 1, first] if is_pair else [NO_ANSWER]
        rows += [member] * len(masks)
    return replace(
        to_batch(documents, PreferenceBatch),
        desirable=torch.tensor(desirable, dtype=torch.bool),
        others=torch.tensor(others, dtype=torch.int64),
        answer_tokens=torch.tensor(tokens, dtype=torch.int64),
        answer_weights=torch.from_numpy(preferences.weights[rows]),
        confidence=torch.from_numpy(preferences.confidence[rows]),
        members=tuple(members),
    )


class ReferenceReader(Protocol):
    """What needs a reference's log-probabilities (model_ops.preferences.sampled_pairs)."""

    def asks(self) -> dict[str, Asked]:
        """Rows by name. Every process asks for the same."""

    def take(self, logs: Mapping[str, np.ndarray]) -> None:
        """Receives the log-probability of each label of these rows, in order."""


@dataclass(frozen=True)
class Asked:
    """Rows whose labels are asked for, and their batches: as many on each process. Labels in none of them are not read."""

    preferences: Preferences
    batches: Callable[[], Iterator[PreferenceBatch]]


class PreferencePlan(PackedRows[PreferenceBatch]):
    """A plan of packed preference rows; a ReferenceReader."""

    def __init__(self, preferences: Preferences, settings: TrainingSettings, world: World):
        super().__init__(preferences.documents, settings)
        self.preferences, self.starts, self.world = preferences, label_starts(preferences), world
        self.reference: Float[np.ndarray, " labels"] | None = None

    def _batch_of(self, members: list[int]) -> PreferenceBatch:
        return preference_batch(self.preferences, members, self.starts, self.reference)

    @property
    def first_pass(self) -> range:
        """The first steps, which read every document that the run reads."""
        return range(min(len(self), math.ceil(len(self.rows) / self.rows_per_step)))

    def asks(self) -> dict[str, Asked]:
        """The rows of the first pass, in the micro-batches of its steps."""

        def batches() -> Iterator[PreferenceBatch]:
            for step in self.first_pass:
                yield from self.step(step, self.world.data_rank, self.world.data_ranks)

        return {"train": Asked(self.preferences, batches)}

    def take(self, logs: Mapping[str, np.ndarray]) -> None:
        self.reference = logs["train"]


def shared_batches(
    preferences: Preferences,
    members: Sequence[int],
    batch_tokens: int,
    world: World,
    reference: Float[np.ndarray, " labels"] | None = None,
    share: bool = True,
) -> Iterator[PreferenceBatch]:
    """The documents by similar length, in batches of up to so many tokens: this process's share, or all where the members are
    its own already (`share` False). Each process gets as many, some of them silenced."""
    starts, lengths = label_starts(preferences), preferences.documents.lengths
    parts: list[list[int]] = []
    held = 0
    for member in sorted(members, key=lambda member: (lengths[member], member)):
        if not parts or held + lengths[member] > batch_tokens:
            parts, held = [*parts, []], 0
        parts[-1].append(member)
        held += int(lengths[member])
    mine = parts[world.data_rank :: world.data_ranks] if share else parts
    rounds = int(world.greatest([float(len(mine))])[0])
    for part in mine:
        yield preference_batch(preferences, part, starts, reference)
    for _ in range(rounds - len(mine)):
        yield preference_batch(preferences, [0], starts, reference).silenced()
