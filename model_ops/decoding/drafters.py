"""Interface of a drafter for speculative decoding, and a language model as one. The decoder calls `begin` with the prompts of a
batch, then `propose` and `advance` in turn; `keep` drops finished rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from model_ops.decoding.runner import DecodingCache, Runner
from model_ops.decoding.sampling import sample


@dataclass(frozen=True)
class Proposal:
    """Draft tokens of one round. tokens are ids of the target; valid is False for padding. Draft k was drawn from
    probabilities[row, k], over the draft vocabulary, where it has index draft_index; target_ids maps draft vocabulary to target
    ids."""

    tokens: Int[Tensor, "rows drafts"]
    valid: Bool[Tensor, "rows drafts"]
    probabilities: Float32[Tensor, "rows drafts draft_vocab"] | None = None
    """None for a deterministic drafter."""
    draft_index: Int[Tensor, "rows drafts"] | None = None
    target_ids: Int[Tensor, " draft_vocab"] | None = None


def independent_drafts(
    logits: Float32[Tensor, "rows drafts draft_vocab"],
    temperature: float,
    uniforms: Float32[Tensor, "rows drafts"],
    target_ids: Int[Tensor, " draft_vocab"],
) -> Proposal:
    """Drafts that do not see each other: the argmax of each at temperature 0, else a sample of each."""
    probabilities = None if temperature == 0 else (logits / temperature).softmax(dim=-1)
    index = logits.argmax(dim=-1) if probabilities is None else sample(probabilities, uniforms)
    return Proposal(target_ids[index], torch.ones_like(index, dtype=torch.bool), probabilities, index, target_ids)


class DraftChain:
    """Drafts that are proposed one after another: the argmax of each at temperature 0 or if `greedy`, else a sample of each."""

    def __init__(self, temperature: float, uniforms: Float32[Tensor, "rows drafts"], greedy: bool):
        self.temperature, self.uniforms = 0.0 if greedy else temperature, uniforms
        self.indices: list[Tensor] = []
        self.distributions: list[Tensor] = []

    def add(self, logits: Float32[Tensor, "rows draft_vocab"]) -> Int[Tensor, " rows"]:
        """The next draft of every row, as an index of the draft vocabulary."""
        if self.temperature == 0:
            self.indices.append(logits.argmax(dim=-1))
        else:
            self.distributions.append((logits / self.temperature).softmax(dim=-1))
            self.indices.append(sample(self.distributions[-1], self.uniforms[:, len(self.indices)]))
        return self.indices[-1]

    def proposal(self, target_ids: Int[Tensor, " draft_vocab"]) -> Proposal:
        """All drafts."""
        index = torch.stack(self.indices, dim=1)
        probabilities = torch.stack(self.distributions, dim=1) if self.distributions else None
        return Proposal(target_ids[index], torch.ones_like(index, dtype=torch.bool), probabilities, index, target_ids)


class Drafter(Protocol):
    capture: tuple[int, ...]
    """States of the target that the drafter reads: block boundaries, or `incremental.FINAL`."""

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        """Starts a batch. first: the target's first token of each answer; captured: its hidden states over the prompts."""

    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes the next `count` tokens of every row."""

    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        """Takes the result of a round. emitted: its tokens, the first counts[row] of each row are valid. captured: hidden
        states at the positions of the tokens that were the target's INPUT in that round."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""


class ModelDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and samples at other temperatures.
    vocab_size: rows of the target's embedding; further rows of the small model are padding and never drafted. greedy: propose
    the argmax at any temperature."""

    capture: tuple[int, ...] = ()

    def __init__(self, runner: Runner, vocab_size: int, greedy: bool = False):
        self.runner, self.greedy = runner, greedy
        self.target_ids = torch.arange(min(vocab_size, runner.embedding.shape[0]), device=runner.device)
        self.cache: DecodingCache = runner.new_cache(0)
        self.tail = self.target_ids.new_empty(0, 2)
        """The last two tokens of every row, which are not in the cache yet. [rows, 2]"""

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None = None,
    ) -> None:
        device = first.device
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        self.cache = self.runner.new_cache(len(prompts))
        self._forward(ids)
        self.cache.lengths = lengths - 1
        self.tail = torch.stack((ids.gather(1, lengths[:, None] - 1).squeeze(1), first), dim=1)

    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        known, read, chain = self.cache.lengths, self.tail, DraftChain(temperature, uniforms, self.greedy)
        for _ in range(count):
            hidden = self._forward(read)
            self.cache.advance(read.shape[1])
            read = chain.add(self.runner.logits(hidden[:, -1])[:, : len(self.target_ids)])[:, None]
        self.cache.lengths = known
        return chain.proposal(self.target_ids)

    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None = None,
    ) -> None:
        self.cache.lengths = self.cache.lengths + counts
        whole = torch.cat((self.tail[:, -1:], emitted), dim=1)  # token i of a round is at index i + 1
        self.tail = whole.gather(1, torch.stack((counts - 1, counts), dim=1))

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.cache.keep(rows)
        self.tail = self.tail[rows]

    def _forward(self, ids: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens hidden"]:
        # a target with more padding rows may emit one of them; it is not a token, so any row can replace it
        return self.runner.forward(ids.clamp(max=self.runner.embedding.shape[0] - 1), self.cache)[0]
