"""The n-gram drafter (prompt lookup): propose what followed the latest tokens when they were seen before.

    index = NgramIndex(prompt_ids)
    index.propose(3)                      # the tokens after the earliest occurrence of the longest known suffix
    counts = replay(prompt, answer, ...)  # its acceptance over a text the target has already produced, exactly

As vLLM's `ngram` method does it: the longest suffix of 4 down to 1 tokens that occurred before, its earliest
occurrence, up to K tokens that followed. It proposes surely, so a draft is accepted iff it equals the token the target
itself draws: the emitted text is the target's own text for the same uniforms, and its acceptance can be counted over
that text without running the target again (a test compares this with the decoder).
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


def replay(prompt: Sequence[int], answer: Sequence[int], num_speculative_tokens: int, max_new_tokens: int,
           ) -> tuple[int, int, int, list[int]]:
    """Acceptance of the n-gram drafter over an answer of the target: (forwards, drafts, drafted tokens, accepted per
    position).

    `answer` ends with its end-of-text token or runs num_speculative_tokens past max_new_tokens, so that the last
    round can be counted as the decoder counts it: rounds begin while fewer than max_new_tokens are out, and the
    prompt's own forward gives the first token.
    """
    index = NgramIndex(prompt)
    index.extend(answer[:1])
    emitted, forwards, drafts, drafted = min(1, len(answer)), 0, 0, 0
    accepted_at = [0] * num_speculative_tokens
    while emitted < min(max_new_tokens, len(answer)):
        proposal = index.propose(num_speculative_tokens)
        accepted = 0
        following = answer[emitted:emitted + len(proposal)]
        while accepted < len(following) and following[accepted] == proposal[accepted]:
            accepted += 1
        forwards += 1
        drafts += bool(proposal)
        drafted += len(proposal)
        step = answer[emitted:emitted + accepted + 1]
        for position in range(len(step) - 1):
            accepted_at[position] += 1
        index.extend(step)
        emitted += len(step)
    return forwards, drafts, drafted, accepted_at
