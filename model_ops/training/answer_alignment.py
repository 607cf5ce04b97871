"""Aligns two tokenisations of one answer: groups of tokens that stand for the same bytes.

    groups = aligned(student_ids, teacher_ids, student_bytes, teacher_bytes)
    groups          # [groups, 4]: first and last token of the student's, first and last of the teacher's

A group ends where a token of both ends at the same byte. Special tokens are matched one to one, in order, whatever their
names. Where the texts differ (a tool call that two templates write in different ways), the bytes before are aligned, and the
end of turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Int

from model_ops.rendering.token_bytes import TokenBytes

Groups = Int[np.ndarray, "groups 4"]


def aligned(student_ids: Sequence[int], teacher_ids: Sequence[int], student: TokenBytes, teacher: TokenBytes) -> Groups:
    """The groups in order. Tokens between which no group closes are in none."""
    ours, theirs = _segments(student_ids, student), _segments(teacher_ids, teacher)
    found: list[Groups] = []
    whole = len(ours) == len(theirs)
    for (our_first, our_texts), (their_first, their_texts) in zip(ours, theirs, strict=False):
        if (our_texts is None) != (their_texts is None):
            whole = False
            break
        if our_texts is None:
            found.append(np.array([[our_first, our_first, their_first, their_first]]))
            continue
        groups, whole_text = _aligned_text(our_texts, their_texts)
        found.append(groups + np.array([our_first, our_first, their_first, their_first]))
        if not whole_text:
            whole = False
            break
    if not whole and ours and theirs and ours[-1][1] is None and theirs[-1][1] is None:
        last = np.array([[ours[-1][0], ours[-1][0], theirs[-1][0], theirs[-1][0]]])
        if not found or not len(found[-1]) or (found[-1][-1, 1] < last[0, 1] and found[-1][-1, 3] < last[0, 3]):
            found.append(last)
    return np.concatenate([np.zeros((0, 4), np.int64), *found]).astype(np.int32)


def _segments(ids: Sequence[int], vocabulary: TokenBytes) -> list[tuple[int, list[bytes] | None]]:
    """(first token, bytes of its tokens) of each run of text; (token, None) of each special token."""
    found: list[tuple[int, list[bytes] | None]] = []
    for is_special, run in groupby(enumerate(ids), key=lambda item: int(item[1]) in vocabulary.special):
        tokens = list(run)
        if is_special:
            found += [(place, None) for place, _ in tokens]
        else:
            found.append((tokens[0][0], [vocabulary.bytes.get(int(token), b"") for _, token in tokens]))
    return found


def _aligned_text(ours: list[bytes], theirs: list[bytes]) -> tuple[Groups, bool]:
    """(groups of the bytes that both begin with, whether that is all of both)."""
    our_text, their_text = b"".join(ours), b"".join(theirs)
    if our_text[:1] == b" " and their_text and our_text[1:2] == their_text[:1] != b" ":  # SentencePiece's space before a text
        ours, our_text = [ours[0][1:], *ours[1:]], our_text[1:]
    elif their_text[:1] == b" " and our_text and their_text[1:2] == our_text[:1] != b" ":
        theirs, their_text = [theirs[0][1:], *theirs[1:]], their_text[1:]
    shared = _shared_bytes(our_text, their_text)
    our_ends, their_ends = (np.cumsum([len(token) for token in tokens]) for tokens in (ours, theirs))
    ends = np.intersect1d(our_ends, their_ends)
    ends = ends[(ends <= shared) & (ends > 0)]
    our_last, their_last = (np.searchsorted(own, ends, side="right") - 1 for own in (our_ends, their_ends))
    groups = np.stack([np.concatenate([[0], our_last[:-1] + 1])[:len(ends)], our_last,
                       np.concatenate([[0], their_last[:-1] + 1])[:len(ends)], their_last], axis=1)
    return groups, our_text == their_text


def _shared_bytes(one: bytes, other: bytes) -> int:
    """Number of bytes that two texts begin with in common."""
    length = min(len(one), len(other))
    different = np.flatnonzero(np.frombuffer(one[:length], np.uint8) != np.frombuffer(other[:length], np.uint8))
    return int(different[0]) if len(different) else length
