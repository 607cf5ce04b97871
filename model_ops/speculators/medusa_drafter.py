"""Decoding with MEDUSA: every head drafts from the target's last hidden state.

    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

After verification a server passes the final state of the last accepted token, as in training (index j). Only this state is kept
between rounds; there is no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.decoding.drafters import Proposal, independent_drafts
from model_ops.decoding.incremental import FINAL
from model_ops.errors import ModelError


class _Heads(Protocol):
    target_ids: Tensor
    longest_chain: int

    def logits(self, state: Tensor, head: int) -> Tensor:
        """Logits of a head, float32."""


class MedusaDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and otherwise samples each draft
    independently.

    greedy: propose the argmax at any temperature, as vLLM does.
    """

    capture = (FINAL,)

    def __init__(self, model: _Heads, greedy: bool = False):
        self.model, self.greedy = model, greedy
        self.state: Tensor | None = None
        """The target's final state at each row's last verified index. [rows, hidden]"""

    def begin(self, prompts: Sequence[Sequence[int]], first: Int[Tensor, " rows"],
              captured: Float[Tensor, "rows tokens hidden"] | None) -> None:
        self._take(captured, torch.tensor([len(prompt) for prompt in prompts], device=first.device))

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes `count` drafts. Raises ModelError if the drafter was trained for fewer."""
        if count > self.model.longest_chain:
            raise ModelError(f"this drafter was trained for {self.model.longest_chain} tokens; set num_speculative_tokens to "
                             "at most that")
        logits = torch.stack([self.model.logits(self.state, head) for head in range(count)], dim=1)
        return independent_drafts(logits, 0 if self.greedy else temperature, uniforms, self.model.target_ids)

    def advance(self, emitted: Int[Tensor, "rows tokens"], counts: Int[Tensor, " rows"],
                captured: Float[Tensor, "rows tokens hidden"] | None) -> None:
        self._take(captured, counts)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.state = self.state[rows]

    def _take(self, states: Tensor, counts: Tensor) -> None:
        """Takes the state of each row's last valid token."""
        self.state = states[torch.arange(len(counts), device=counts.device), counts - 1]
