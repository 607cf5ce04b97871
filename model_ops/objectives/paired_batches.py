"""Batches of a student's documents with its teacher's documents of the same answers, in another tokenizer.

plan = PairedPlan(paired, settings, spelling)    # a BatchSource; paired: model_ops.objectives.paired_chats
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from model_ops.documents import PackedPlan, to_batch
from model_ops.objectives.paired_chats import PairedDocuments
from model_ops.objectives.spelling import Spelling, SpellingPositions
from model_ops.tensors import Batch
from model_ops.training import TrainingSettings


@dataclass(frozen=True)
class PairedBatch(Batch):
    """A batch of the student with the teacher's documents of the same answers."""

    teacher: Batch | None = None
    places: SpellingPositions | None = None
    """Where the teacher's distribution can be spelt."""

    def to(self, device: torch.device) -> Self:
        """The batch, and the teacher's, on a device."""
        moved = {
            name: None if part is None else part.to(device)
            for name, part in (("teacher", self.teacher), ("places", self.places))
        }
        return replace(super().to(device), **moved)


class PairedPlan(PackedPlan):
    """A plan of the student's documents whose batches hold the teacher's as well."""

    def __init__(self, paired: PairedDocuments, settings: TrainingSettings, spelling: Spelling):
        super().__init__(paired.documents, settings)
        self.paired, self.spelling = paired, spelling

    def _batch(self, positions: Sequence[int]) -> PairedBatch:
        return paired_batch(self.paired, [i for position in positions for i in self._documents_at(position)], self.spelling)


def paired_batch(paired: PairedDocuments, members: Sequence[int], spelling: Spelling) -> PairedBatch:
    """The batch of some of the student's documents."""
    plain = to_batch([paired.documents[member] for member in members], PairedBatch)
    asked = sorted({int(document) for member in members for document in paired.groups[member][:, 2]})
    theirs = [paired.of_teacher[index] for index in asked]
    starts = dict(zip(asked, np.cumsum([0, *(len(document) for document in theirs)])[: len(asked)], strict=True))
    begin, found, ends = 0, [np.zeros((0, 4), np.int64)], [np.zeros(0, np.int64)]
    for member in members:
        groups = paired.groups[member].astype(np.int64)
        there = np.array([starts[index] for index in groups[:, 2].tolist()], np.int64)
        places = groups[:, 0] + begin, groups[:, 1] + begin, groups[:, 3] + there, groups[:, 4] + there
        found.append(np.stack(places, axis=1) - 1)
        ends.append(there + np.array([len(paired.of_teacher[index]) for index in groups[:, 2].tolist()], np.int64))
        begin += len(paired.documents[member])
    teacher: Batch | None = to_batch(theirs) if theirs else None
    groups = np.concatenate(found)
    places = spelling.places(
        plain.input_ids.numpy(), teacher.input_ids.numpy() if theirs else groups[:, 0], groups, np.concatenate(ends)
    )
    return replace(plain, teacher=teacher, places=places)
