"""Decoding with DFlash: one block of drafts per round, over a ragged cache of keys and values of the target's states.

    drafter = load_draft_model(directory).attach(runner).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=7)

Only cache entries from the target's own states stay visible. Entries of a block lie behind them, and entries from the states
that the target computed while verifying the block overwrite them. Servers do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.decoding import Proposal, RotaryTable, independent_drafts
from model_ops.jobs import ModelError
from model_ops.speculators.backbone.draft_layers import new_cache

if TYPE_CHECKING:
    from model_ops.speculators.dflash.network import DFlash


class DFlashDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and otherwise samples each draft
    independently.

    greedy: propose the argmax at any temperature.
    """

    def __init__(self, model: DFlash, greedy: bool = False):
        model.of_target()  # fails before a prompt is read if no target is attached
        self.model, self.greedy = model, greedy
        self.capture = model.capture
        self.target_ids = model.target_ids
        self.rotary = RotaryTable(model.rotary, model.fc.weight.dtype)
        self.cache = new_cache(model.config, model.fc, 0)
        self.anchor = self.target_ids[:0]
        """The token that the target drew last in each row, at the position of the cache's length."""

    @torch.no_grad()
    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self.cache = new_cache(self.model.config, self.model.fc, len(prompts))
        self._extend(torch.tensor([len(prompt) for prompt in prompts], device=first.device), captured)
        self.anchor = first

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes a block of drafts. Raises ModelError if `count` exceeds the drafts of a block."""
        model, cache = self.model, self.cache
        if count > model.longest_chain:
            raise ModelError(
                f"this drafter was trained for blocks of {model.longest_chain} drafts; set num_speculative_tokens "
                "to at most that"
            )
        cache.reserve(1 + count)
        positions = cache.positions(1 + count)
        cos, sin = self.rotary.at(positions, cache.longest + 1 + count)
        hidden = model.embed(self.anchor, count)
        for number, layer in enumerate(model.layers):
            attention, x = layer.self_attn, layer.input_layernorm(hidden)
            attended = cache.attend(
                number, attention.query(x, cos, sin), *attention.key_value(x, cos, sin), positions=positions, causal=False
            )
            hidden = layer.finish(hidden, attended)
        return independent_drafts(model.logits(hidden[:, 1:]), 0 if self.greedy else temperature, uniforms, self.target_ids)

    @torch.no_grad()
    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self._extend(counts, captured)
        self.anchor = emitted.gather(1, counts[:, None] - 1).squeeze(1)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.cache.keep(rows)
        self.anchor = self.anchor[rows]

    def _extend(self, counts: Tensor, captured: Tensor | None) -> None:
        """Adds cache entries from the target's states; the first counts[row] of each row are valid."""
        if captured is None:
            raise ValueError("DFlash drafts from the target's hidden states, and none are given")
        tokens = captured.shape[1]
        self.cache.reserve(tokens)
        positions = self.cache.positions(tokens)
        cos, sin = self.rotary.at(positions, self.cache.longest + tokens)
        context = self.model.context(captured)
        for number, layer in enumerate(self.model.layers):
            self.cache.store(number, *layer.self_attn.key_value(context, cos, sin), positions=positions)
        self.cache.lengths = self.cache.lengths + counts
