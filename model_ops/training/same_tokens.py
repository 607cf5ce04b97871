"""Whether a student with a tokenizer of its own reads a dataset as its teacher does.

    different = first_difference(teacher_tokenizer, student_tokenizer, of_teacher, of_student)
    different            # None; or "token id 17 is another token", "row 5 is rendered as other tokens"

The two may have different numbers of tokens: an embedding padded to a round number, or added tokens that no row holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.training.documents import Document


def first_difference(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase, of_teacher: Sequence[Document],
                     of_student: Sequence[Document]) -> str | None:
    """The first difference: a token with another id, or a row with other tokens or targets; None without a difference.

    of_teacher, of_student: the documents of the same rows, read with each tokenizer.
    """
    return _first_other_id(teacher, student) or _first_other_row(of_teacher, of_student)


def _first_other_id(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> str | None:
    theirs = {token_id: token for token, token_id in teacher.get_vocab().items()}
    ours = {token_id: token for token, token_id in student.get_vocab().items()}
    other = [token_id for token_id in theirs.keys() & ours.keys() if theirs[token_id] != ours[token_id]]
    return f"token id {min(other)} is another token" if other else None


def _first_other_row(of_teacher: Sequence[Document], of_student: Sequence[Document]) -> str | None:
    for theirs, ours in zip(of_teacher, of_student, strict=False):
        if theirs.row_id != ours.row_id or not np.array_equal(theirs.input_ids, ours.input_ids) \
                or not np.array_equal(theirs.targets, ours.targets) or theirs.branches != ours.branches:
            return f"row {ours.row_id} is rendered as other tokens"
    if len(of_teacher) != len(of_student):
        return f"the chat templates leave {len(of_teacher)} and {len(of_student)} documents of the rows"
    return None
