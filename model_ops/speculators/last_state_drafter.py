"""Decoding with drafters that read only the target's last hidden state: MEDUSA and MLP speculators.

    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

After verification a server passes the final state of the last accepted token and the token drawn from it, the same pair as in
training (index j, x[j+1]). Only this pair is kept between rounds; there is no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from model_ops.decoding.drafters import Proposal
from model_ops.decoding.incremental import FINAL
from model_ops.decoding.sampling import sample
from model_ops.errors import ModelError


class _Steps(Protocol):
    target_ids: Tensor
    longest_chain: int

    def draft_step(self, state: Tensor, tokens: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """(state for the next step, float32 logits of this step), from the token before the drafted one."""


class LastStateDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and samples at other temperatures.

    greedy: propose the argmax at any temperature, as vLLM's MEDUSA does.
    """

    capture = (FINAL,)

    def __init__(self, model: _Steps, greedy: bool = False):
        self.model, self.greedy = model, greedy
        self.target_ids = model.target_ids
        self.state: Tensor | None = None
        """The target's final state at each row's last verified index. [rows, hidden]"""
        self.token: Tensor | None = None
        """The token drawn from that state. [rows]"""

    def begin(self, prompts: Sequence[Sequence[int]], first: Int[Tensor, " rows"],
              captured: Float[Tensor, "rows tokens hidden"] | None) -> None:
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=first.device)
        self._take(captured, lengths, first)

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes `count` drafts. Raises ModelError if the drafter was trained for fewer."""
        if count > self.model.longest_chain:
            raise ModelError(f"this drafter was trained for {self.model.longest_chain} tokens; set num_speculative_tokens to "
                             "at most that")
        state, tokens = self.state, self.token
        indices, distributions = [], []
        for step in range(count):
            state, logits = self.model.draft_step(state, tokens, step)
            if temperature == 0 or self.greedy:
                indices.append(logits.argmax(dim=-1))
            else:
                distributions.append((logits / temperature).softmax(dim=-1))
                indices.append(sample(distributions[-1], uniforms[:, step]))
            tokens = self.target_ids[indices[-1]]
        index = torch.stack(indices, dim=1)
        probabilities = torch.stack(distributions, dim=1) if distributions else None
        return Proposal(self.target_ids[index], torch.ones_like(index, dtype=torch.bool), probabilities, index,
                        self.target_ids)

    def advance(self, emitted: Int[Tensor, "rows tokens"], counts: Int[Tensor, " rows"],
                captured: Float[Tensor, "rows tokens hidden"] | None) -> None:
        self._take(captured, counts, emitted.gather(1, counts[:, None] - 1).squeeze(1))

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.state, self.token = self.state[rows], self.token[rows]

    def _take(self, states: Tensor, counts: Tensor, token: Tensor) -> None:
        """Takes the state of each row's last valid token and the token drawn from it."""
        self.state = states[torch.arange(len(counts), device=counts.device), counts - 1]
        self.token = token
