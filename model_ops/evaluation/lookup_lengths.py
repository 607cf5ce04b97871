"""The draft length at which a drafter without training does best, searched on held-out answers of the validation split.

    found = search(past_answers, texts, 3)    # {"ngram": LookupLength(5, 1.31, 60, {...}), "suffix": LookupLength(12, ...)}

n-gram and suffix lookups draft for free, but a server verifies every draft. tau grows with the length K until matches end, so
the shortest K that reaches NEARLY_BEST of the best tau is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from model_ops.decoding.acceptance import tau_of
from model_ops.decoding.lookup import replay
from model_ops.decoding.measure_acceptance import baselines

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
"""Searched draft lengths; 24 is vLLM's suffix_decoding_max_tree_depth."""
NEARLY_BEST = 0.99


@dataclass(frozen=True)
class LookupLength:
    """The draft length chosen for prompt lookup."""

    num_speculative_tokens: int
    """The chosen K."""
    tau: float | None
    """Acceptance length at K, over the searched answers; None without any."""
    answers: int
    taus: dict[str, float] = field(default_factory=dict)
    """Acceptance length by K, as text."""


def search(past_answers: Sequence[Sequence[int]], texts: Sequence[tuple[Sequence[int], Sequence[int]]],
           otherwise: int) -> dict[str, LookupLength]:
    """The best length of each lookup drafter. texts: (prompt, answer) token ids of the target. otherwise: K without texts."""
    if not any(answer for _, answer in texts):
        return {name: LookupLength(otherwise, None, 0) for name in baselines()}
    taus: dict[str, dict[int, float]] = {}
    for length in LENGTHS:
        for name, drafter in baselines(past_answers).items():
            counts = [replay(drafter.open_index(prompt), answer, [], length) for prompt, answer in texts]
            forwards, accepted = sum(each.forwards for each in counts), sum(sum(each.accepted_at) for each in counts)
            taus.setdefault(name, {})[length] = tau_of(forwards, accepted)
    found = {}
    for name, by_length in taus.items():
        best = next(length for length in LENGTHS if by_length[length] >= NEARLY_BEST * max(by_length.values()))
        as_text = {str(length): tau for length, tau in by_length.items()}
        found[name] = LookupLength(best, by_length[best], len(texts), as_text)
    return found
