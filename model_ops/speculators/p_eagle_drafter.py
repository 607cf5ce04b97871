"""Decoding with P-EAGLE: all drafts of a round in one pass over mask entries.

    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

As with EAGLE-3, only cache entries from the target's own states stay visible. Mask entries of a round come after them, and the
next entries from the target's states overwrite them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from model_ops.decoding.drafters import Proposal, independent_drafts
from model_ops.errors import ModelError
from model_ops.speculators.eagle3_drafter import Eagle3Drafter
from model_ops.speculators.masked_drafts import MaskedBody


class PEagleDrafter(Eagle3Drafter):
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and otherwise samples each draft
    independently."""

    model: MaskedBody

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes `count` drafts. Raises ModelError if the drafter was trained for fewer."""
        if count > (self.model.longest_chain or count):
            raise ModelError(f"this drafter was trained for {self.model.longest_chain} tokens; set num_speculative_tokens to "
                             "at most that")
        outputs = self.hidden[:, None]
        if count > 1:
            masked = [state.expand(len(outputs), count - 1, -1) for state in self.model.masked()]
            outputs = torch.cat((outputs, self._body(*masked)), dim=1)
        return independent_drafts(self.model.logits(outputs), 0 if self.greedy else temperature, uniforms, self.target_ids)
