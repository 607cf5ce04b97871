"""Drafts with a small language model: the distilled student, or any model with the target's tokenizer.

It reads only tokens, no hidden states of the target, so it works with any target of the same tokenizer, also after further
training or another quantization. After a round its cache holds everything but the last two tokens (the last draft was not an
input, and the target's own token follows it), so a round begins with these two as input.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.decoding.drafters import DraftChain, Proposal
from model_ops.decoding.runner import DecodingCache, Runner


class ModelDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and samples at other temperatures.

    vocab_size: rows of the target's embedding; further rows of the small model are padding and never drafted. greedy: propose
    the argmax at any temperature.
    """

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
