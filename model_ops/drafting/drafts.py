"""What a server drafts with: nothing, a lookup that needs no training, or the trained drafter; and how many tokens at a
time, K, also by batch size: (first, last, K) for each range of requests, as vLLM's `num_speculative_tokens_per_batch_size`.
No torch."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from model_ops.speculators import DrafterServing, SglangOptions, VllmOptions

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


Method = Literal["none", "ngram", "suffix", "drafter"]
SIMPLEST_FIRST: tuple[Method, ...] = ("none", "ngram", "suffix", "drafter")

LOOKUPS: dict[str, DrafterServing] = {
    "ngram": DrafterServing(
        "n-gram lookup",
        VllmOptions("ngram", {"prompt_lookup_min": SHORTEST_NGRAM, "prompt_lookup_max": LONGEST_NGRAM}),
        SglangOptions("NGRAM", drafts_in_one_step=True),
    ),
    "suffix": DrafterServing("suffix lookup", VllmOptions("suffix")),
}
"""How servers run the drafters that need no training. vLLM's suffix lookup needs the package arctic-inference there."""


class Drafting(BaseModel):
    """What a server drafts with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method = "none"
    """`drafter` is the release's own drafter."""
    num_speculative_tokens: int = 0
    """Most tokens drafted at a time (K); 0 for `none`."""
    by_batch_size: tuple[tuple[int, int, int], ...] = ()
    """K by the number of requests in a step, as (first, last, K); empty for the same K everywhere."""

    @model_validator(mode="after")
    def _agrees_with_itself(self):
        if (self.method == "none") != (self.num_speculative_tokens == 0):
            raise ValueError(
                f"method {self.method} with num_speculative_tokens {self.num_speculative_tokens}: `none` drafts 0 "
                "tokens, and every other method at least 1"
            )
        expected = 1
        for first, last, tokens in self.by_batch_size:
            if first != expected or last < first or not 0 <= tokens <= self.num_speculative_tokens:
                raise ValueError(
                    f"by_batch_size {self.by_batch_size}: ranges begin at 1, follow one another, and draft 0 to "
                    f"{self.num_speculative_tokens} tokens"
                )
            expected = last + 1
        return self

    @property
    def simplicity(self) -> tuple[int, int, int]:
        """Sorts the simpler drafting first: by method, then the same K everywhere, then by K."""
        return SIMPLEST_FIRST.index(self.method), len(self.by_batch_size), self.num_speculative_tokens

    @property
    def label(self) -> str:
        """`no drafting`, `n-gram lookup, K = 5`, `drafter, K = 5 (2 at batch sizes 3 to 8, 0 above 8)`."""
        if self.method == "none":
            return "no drafting"
        name = LOOKUPS[self.method].architecture if self.method in LOOKUPS else "drafter"
        return f"{name}, K = {self.num_speculative_tokens}{self._others}"

    @property
    def _others(self) -> str:
        ranges = [(first, last, tokens) for first, last, tokens in self.by_batch_size if tokens != self.num_speculative_tokens]
        ends = self.by_batch_size[-1][1] if self.by_batch_size else 0
        parts = [
            f"{tokens} from batch size {first}"
            if last == ends
            else f"{tokens} at batch size {first}"
            if first == last
            else f"{tokens} at batch sizes {first} to {last}"
            for first, last, tokens in ranges
        ]
        return f" ({', '.join(parts)})" if parts else ""


NO_DRAFTING = Drafting()


def with_drafter(num_speculative_tokens: int) -> Drafting:
    """The release's own drafter, the same number of tokens at every batch size."""
    return Drafting(method="drafter", num_speculative_tokens=num_speculative_tokens)
