"""N-gram drafter (prompt lookup): copies the tokens that followed the latest n-gram earlier in the text.

Equals vLLM's method `ngram` with prompt_lookup_min 1 and prompt_lookup_max 4: takes the earliest occurrence of the longest
suffix of 4 to 1 tokens that occurred before, and drafts up to K tokens after it.
"""

from collections.abc import Sequence

LONGEST_NGRAM = 4
SHORTEST_NGRAM = 1


class NgramIndex:
    """Maps every n-gram of a text to the end of its earliest occurrence."""

    def __init__(self, tokens: Sequence[int] = ()):
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end) + 1):
                self._ends.setdefault(tuple(self.tokens[end - length :]), end)

    def propose(self, count: int) -> list[int]:
        """At most `count` draft tokens; [] if no suffix occurred before."""
        size = len(self.tokens)
        for length in range(min(LONGEST_NGRAM, size), SHORTEST_NGRAM - 1, -1):
            end = self._ends[tuple(self.tokens[size - length :])]
            if end < size:
                return self.tokens[end : end + count]
        return []
