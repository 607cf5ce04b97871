"""Which of the target's tokens a drafter can propose: the tokens its answers are made of.

    ids, coverage = choose_draft_vocabulary(counts, always={2}, size=None, coverage=0.998)

Fewer rows in the drafter's head make drafting cheaper, and a token outside can never be accepted: the coverage is the
share of answer tokens inside, an upper bound of the acceptance rate.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from jaxtyping import Int
from torch import Tensor

FULL_ABOVE = 0.9
"""A draft vocabulary of more than this share of the target's saves nothing: take all."""


def choose_draft_vocabulary(counts: Int[Tensor, " vocab"], always: Collection[int], size: int | None = None,
                            coverage: float = 0.998) -> tuple[Int[Tensor, " draft_vocab"], float]:
    """(ids ascending, share of counted tokens they cover).

    counts: how often each token of the target occurs in answers. always: ids that must be in (special tokens, ends of
    text). size: exactly so many ids, the most frequent first and the lowest unused ones after them; open: the smallest
    set that reaches `coverage`. Raises ValueError where `size` cannot hold `always` or exceeds the vocabulary.
    """
    vocab = len(counts)
    forced = torch.tensor(sorted({token for token in always if 0 <= token < vocab}), dtype=torch.int64)
    if size is not None and not len(forced) <= size <= vocab:
        raise ValueError(f"a draft vocabulary of {size} must hold {len(forced)} special tokens and fit within {vocab}")
    # stable: equal counts keep the order of ids, so the same answers give the same vocabulary
    order = torch.sort(counts, descending=True, stable=True).indices
    is_forced = torch.zeros(vocab, dtype=torch.bool)
    is_forced[forced] = True
    rest = order[~is_forced[order]]
    total = int(counts.sum())
    if size is None:
        covered = counts[forced].sum() + counts[rest].cumsum(0)
        # as many as reach the coverage, but no token that was never seen
        wanted = int((covered < coverage * total).sum()) + 1
        size = len(forced) + min(wanted, int((counts[rest] > 0).sum()))
        if size > FULL_ABOVE * vocab:
            size = vocab
    ids = torch.cat((forced, rest[:size - len(forced)])).sort().values
    return ids, int(counts[ids].sum()) / max(1, total)
