"""Drafters that copy drafts from earlier text (n-gram, suffix), and their acceptance computed without decoding.

    drafter = LookupDrafter(NgramIndex)                   # prompt lookup; decode(runner, ..., drafter=drafter)
    counts = replay(NgramIndex(prompt), answer.tokens, answer.beyond, num_speculative_tokens=3)

A draft is accepted if and only if it equals the token that the target draws, so the text is the target's own text for the same
random numbers at every temperature, and `replay` counts acceptance over that text without running the target again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model_ops.decoding import Proposal


class LookupIndex(Protocol):
    """Index over prompt and answer of one request."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the answer."""

    def propose(self, count: int) -> list[int]:
        """At most `count` draft tokens; [] if no earlier text matches."""


class DraftCounts(NamedTuple):
    """Counts of drafts, as the fields of `decode.Answer`."""

    forwards: int
    drafts: int
    drafted: int
    accepted_at: list[int]


class LookupDrafter:
    """Drafter with one index per row. open_index creates the index of a request from its prompt's token ids."""

    capture: tuple[int, ...] = ()

    def __init__(self, open_index: Callable[[Sequence[int]], LookupIndex]):
        self.open_index = open_index
        self.indexes: list[LookupIndex] = []
        self.device = torch.device("cpu")

    def begin(self, prompts, first, captured=None) -> None:
        self.indexes, self.device = [self.open_index(prompt) for prompt in prompts], first.device
        for index, token in zip(self.indexes, first.tolist(), strict=True):
            index.extend([token])

    def propose(self, count: int, temperature: float, uniforms: Tensor | None = None) -> Proposal:
        """As Drafter.propose, with as many drafts as the longest proposal has."""
        proposals = [index.propose(count) for index in self.indexes]
        longest = max(map(len, proposals))
        tokens = torch.tensor([proposal + [0] * (longest - len(proposal)) for proposal in proposals], dtype=torch.int64)
        lengths = torch.tensor([len(proposal) for proposal in proposals])
        return Proposal(tokens.to(self.device), (torch.arange(longest) < lengths[:, None]).to(self.device))

    def advance(self, emitted, counts, captured=None) -> None:
        for index, tokens, count in zip(self.indexes, emitted.tolist(), counts.tolist(), strict=True):
            index.extend(tokens[:count])

    def keep(self, rows) -> None:
        self.indexes = [self.indexes[row] for row in rows.tolist()]


def replay(index: LookupIndex, answer: Sequence[int], beyond: Sequence[int], num_speculative_tokens: int) -> DraftCounts:
    """Acceptance of a lookup drafter over an answer that the target gave without it; equal to the decoder's counts.

    index: opened on the prompt. beyond: tokens of the target after the answer's end, which drafts of the last round are
    verified against. An exact count needs num_speculative_tokens of them (`decode(..., beyond=K)`).
    """
    text = [*answer, *beyond]
    index.extend(text[:1])
    emitted, forwards, drafts, drafted = min(1, len(answer)), 0, 0, 0
    accepted_at = [0] * num_speculative_tokens
    while emitted < len(answer):
        proposal = index.propose(num_speculative_tokens)
        following = text[emitted : emitted + len(proposal)]
        accepted = 0
        while accepted < len(following) and following[accepted] == proposal[accepted]:
            accepted_at[accepted] += 1
            accepted += 1
        forwards += 1
        drafts += bool(proposal)
        drafted += len(proposal)
        step = text[emitted : emitted + accepted + 1]
        index.extend(step)
        emitted += len(step)
    return DraftCounts(forwards, drafts, drafted, accepted_at)
