"""The n-gram drafter (prompt lookup): propose what followed the latest tokens when they were seen before.

    index = NgramIndex(prompt_ids)
    index.extend(answer_ids)
    index.propose(3)                      # the tokens after the earliest occurrence of the longest known suffix

As vLLM's `ngram` method does it with prompt_lookup_min 1 and prompt_lookup_max 4: the longest suffix of 4 down to 1
tokens that occurred before, its earliest occurrence, up to K tokens that followed. See `model_ops.decoding.lookup` for
the drafter and its replay.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NGRAM = 4
SHORTEST_NGRAM = 1


class NgramIndex:
    """For every n-gram of a text, where its earliest occurrence ends."""

    def __init__(self, tokens: Sequence[int] = ()):
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end) + 1):
                self._ends.setdefault(tuple(self.tokens[end - length:]), end)

    def propose(self, count: int) -> list[int]:
        """At most `count` tokens; none where no suffix was seen before."""
        size = len(self.tokens)
        for length in range(min(LONGEST_NGRAM, size), SHORTEST_NGRAM - 1, -1):
            end = self._ends[tuple(self.tokens[size - length:])]
            if end < size:
                return self.tokens[end:end + count]
        return []
