"""A teacher's cache of what an endpoint told about its answers, for the training documents that learn them.

    cache = write_told(folder, chats.documents, told, vocabulary)       # a TeacherCache, without drawn tokens

A target without a distribution has all mass on its label, so its loss is that of the label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_ops.atomic_files import renamed_when_complete
from model_ops.objectives.teacher_cache import ABOUT, TeacherCache
from model_ops.rendering.told_tokens import PADDED, ToldTokens
from model_ops.training.documents import Document, lengths_and_targets


def write_told(folder: Path, documents: Sequence[Document], told: ToldTokens, vocabulary: int) -> TeacherCache:
    """Writes the cache of the documents. told: has given out their answers. vocabulary: rows of the student's head; an
    alternative beyond them joins the rest of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    targets = lengths_and_targets(documents)[1]
    starts = np.concatenate([[0], np.cumsum(targets)])
    top_k = max((ids.shape[1] for ids, _ in told.answers.values()), default=1)
    shape = (max(1, int(starts[-1])), top_k)
    ids = np.memmap(folder / "ids.bin", np.int32, "w+", shape=shape)
    logs = np.memmap(folder / "logs.bin", np.float16, "w+", shape=shape)
    for place, document in enumerate(documents):
        rows = slice(starts[place], starts[place + 1])
        labels = document.input_ids[1:][document.targets[1:]]
        ids[rows], logs[rows] = labels[:, None], PADDED
        if document.row_id in told.answers:
            of_row, its_logs = told.answers[document.row_id]
            count, width = len(labels), of_row.shape[1]
            ids[rows], logs[rows, :width] = of_row[:count, :1], its_logs[:count]
            ids[rows, :width] = of_row[:count]
        beyond = ids[rows] >= vocabulary
        logs[rows] = np.where(beyond, PADDED, logs[rows])
        _first_in_front(ids[rows], logs[rows], labels)
    ids.flush()
    logs.flush()
    with renamed_when_complete(folder / ABOUT) as temporary:
        temporary.write_text(json.dumps({"top_k": top_k, "drawn": 0, "id_dtype": "int32"}))
    return TeacherCache(folder, documents)


def _first_in_front(ids: np.ndarray, logs: np.ndarray, labels: np.ndarray) -> None:
    """Gives each place without an alternative the id of the first one; a target without any gets its label at probability 1."""
    known = logs > PADDED
    none = ~known.any(1)
    ids[none], logs[none, 0] = labels[none, None], 0.0
    known[none, 0] = True
    first = np.take_along_axis(ids, known.argmax(1)[:, None], 1)
    ids[:] = np.where(known, ids, first)
