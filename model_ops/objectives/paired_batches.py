"""Batches of a student's documents with its teacher's documents of the same answers, in another tokenizer.

    plan = PairedPlan(paired, settings)              # a BatchSource; paired: model_ops.training.paired_chats
    plan = PairedPlan(paired, settings, spelling)    # its batches say, too, where the teacher's distribution can be spelt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from model_ops.batch import Batch
from model_ops.objectives.spelling import Places, Spelling
from model_ops.training.documents import to_batch
from model_ops.training.packing import PackedPlan
from model_ops.training.paired_chats import PairedDocuments
from model_ops.training.settings import TrainingSettings


@dataclass(frozen=True)
class PairedBatch(Batch):
    """A batch of the student with the teacher's documents of the same answers.

    groups: positions that predict a group's first and last token, in this batch and in the teacher's. places: None without a
    spelling."""

    teacher: Batch | None = None
    places: Places | None = None
    groups: Int[Tensor, "groups 4"] = field(default_factory=lambda: torch.zeros(0, 4, dtype=torch.int64))

    def to(self, device: torch.device) -> Self:
        """The batch, and the teacher's, on a device."""
        moved = {name: None if part is None else part.to(device)
                 for name, part in (("teacher", self.teacher), ("places", self.places))}
        return replace(super().to(device), **moved)


class PairedPlan(PackedPlan):
    """A plan of the student's documents whose batches hold the teacher's as well."""

    def __init__(self, paired: PairedDocuments, settings: TrainingSettings, spelling: Spelling | None = None):
        super().__init__(paired.documents, settings)
        self.paired, self.spelling = paired, spelling

    def _batch(self, positions: Sequence[int]) -> PairedBatch:
        return paired_batch(self.paired, [i for position in positions for i in self._documents_at(position)], self.spelling)


def paired_batch(paired: PairedDocuments, members: Sequence[int], spelling: Spelling | None = None) -> PairedBatch:
    """The batch of some of the student's documents."""
    plain = to_batch([paired.documents[member] for member in members], PairedBatch)
    asked = sorted({int(document) for member in members for document in paired.groups[member][:, 2]})
    theirs = [paired.of_teacher[index] for index in asked]
    starts = dict(zip(asked, np.cumsum([0, *(len(document) for document in theirs)])[:len(asked)], strict=True))
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
    places = None
    if spelling is not None:
        places = spelling.places(plain.input_ids.numpy(), teacher.input_ids.numpy() if theirs else groups[:, 0], groups,
                                 np.concatenate(ends))
    return replace(plain, teacher=teacher, groups=torch.from_numpy(groups), places=places)
