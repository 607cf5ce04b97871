"""Suffix drafter (SuffixDecoding, arXiv 2411.04975), compatible with vLLM's method `suffix` and ArcticInference.

    cache = SuffixCache()                                 # one for a workload; remembers past answers
    index = cache.open(prompt_ids)                        # a request
    index.extend(answer_ids)
    index.propose(5)

For every suffix of the latest tokens that occurs in the request's own text, or in the workload's answers, the draft is the
most frequent continuation, token by token, until its estimated probability falls below min_token_prob. The draft with the
largest sum of probabilities is proposed; ties go to the longer match, then to the request's own text. Instead of a suffix
tree, a linked list leads from each position to the previous one with the same token. Drafts equal those of ArcticInference
0.3, except where two continuations are equally frequent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SuffixOptions:
    """vLLM's suffix_decoding_* options with its defaults."""

    max_tree_depth: int = 24
    """Most tokens of suffix and continuation together."""
    max_cached_requests: int = 10_000
    """Most answers in the cache; the oldest are evicted first. 0: none."""
    max_spec_factor: float = 1.0
    """Most drafted tokens per token of the matched suffix."""
    min_token_prob: float = 0.1
    """A draft ends before its estimated probability falls below this."""


class SuffixText:
    """Growing token sequences with a search for the occurrences of any suffix."""

    def __init__(self) -> None:
        self.size = self.sequences = self.oldest = 0
        # rows: token; previous and next position in its sequence; previous position of the same token; sequence
        self.positions = np.empty((5, 1_024), dtype=np.int32)
        self.latest = np.full(1_024, -1, dtype=np.int32)
        """Latest position of each token; -1 if it never occurred."""

    def begin(self) -> tuple[int, int]:
        """Starts a sequence; returns its number and the position before its first token."""
        self.sequences += 1
        return self.sequences - 1, -1

    def extend(self, sequence: int, end: int, tokens: Sequence[int]) -> int:
        """Appends to a sequence whose last position is `end`; returns its new last position."""
        added = np.asarray(tokens, dtype=np.int32)
        if not len(added):
            return end
        while self.size + len(added) > self.positions.shape[1]:
            self.positions = np.concatenate((self.positions, np.empty_like(self.positions)), axis=1)
        highest = int(added.max())
        if highest >= len(self.latest):
            self.latest = np.concatenate((self.latest, np.full(highest + 1, -1, dtype=np.int32)))
        from model_ops.drafting.suffix_kernels import append  # loads numba

        self.size = append(self.positions, self.latest, self.size, sequence, end, added)
        return self.size - 1

    def propose(self, context: np.ndarray, count: int, options: SuffixOptions) -> tuple[float, list[int]]:
        """(score, draft) after a context of at least one token. score: sum of the draft's estimated probabilities."""
        from model_ops.drafting.suffix_kernels import propose

        if context[-1] >= len(self.latest):
            return 0.0, []
        score, draft = propose(
            self.positions,
            self.latest,
            self.oldest,
            context,
            count,
            options.max_tree_depth,
            np.float32(options.max_spec_factor),
            np.float32(options.min_token_prob),
        )
        return float(score), draft.tolist()


class SuffixCache:
    """Past answers of a workload and answers of its open requests."""

    def __init__(self, options: SuffixOptions | None = None):
        self.options = options or SuffixOptions()
        self.answers = SuffixText()

    def open(self, prompt: Sequence[int]) -> SuffixIndex:
        """Starts a request; the other requests see its answer while it grows."""
        return SuffixIndex(self, prompt)

    def remember(self, answer: Sequence[int]) -> None:
        """Adds an answer of earlier traffic."""
        if self.options.max_cached_requests:
            sequence, end = self._begin()
            self.answers.extend(sequence, end, answer)

    def _begin(self) -> tuple[int, int]:
        sequence, end = self.answers.begin()
        self.answers.oldest = max(0, self.answers.sequences - self.options.max_cached_requests)
        return sequence, end


class SuffixIndex:
    """One request of a SuffixCache; a `model_ops.drafting.measure_acceptance.LookupIndex`."""

    def __init__(self, cache: SuffixCache, prompt: Sequence[int]):
        self.cache = cache
        self.own = SuffixText()
        self.own_sequence, self.own_end = self.own.begin()
        self.recent: list[int] = []
        self.shared = bool(cache.options.max_cached_requests)
        if self.shared:
            self.sequence, self.end = cache._begin()
        self._extend_own(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._extend_own(tokens)
        if self.shared:
            self.end = self.cache.answers.extend(self.sequence, self.end, tokens)

    def propose(self, count: int) -> list[int]:
        context = np.asarray(self.recent, dtype=np.int32)
        score, draft = self.own.propose(context, count, self.cache.options)
        if self.shared:
            other_score, other = self.cache.answers.propose(context, count, self.cache.options)
            if other_score > score:
                return other
        return draft

    def _extend_own(self, tokens: Sequence[int]) -> None:
        self.own_end = self.own.extend(self.own_sequence, self.own_end, tokens)
        self.recent = [*self.recent, *tokens][-self.cache.options.max_tree_depth :]
