"""Interface of drafters that run the same layers for each draft, on their own output: EAGLE-3, P-EAGLE, MTP.

    hidden = model.fuse(captured)                                   # step 0 reads the target's hidden states
    hidden = model.fed_back(hidden)                                 # later steps read the output of the step before
    for layer in model.body:                                        # each a `draft_layers.BodyLayer`
        ...
    logits = model.logits(hidden)

`unrolled_draft_steps` trains them and `eagle3_drafter` decodes with them; both use only this interface.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.speculators.draft_layers import BodyLayer
from model_ops.speculators.draft_model import DraftModel


class RepeatedBody(DraftModel):
    """A drafter whose layers ("body") are run once for each draft.

    rotary: transformers' rotary embedding for its positions
    norm, lm_head: final norm and output matrix
    fc: the first projection of its inputs; its dtype is the module's
    """

    config: Any  # of its own kind, with num_layers, num_key_value_heads and head_dim
    rotary: nn.Module
    norm: nn.Module
    lm_head: nn.Linear
    fc: nn.Linear

    @property
    @abstractmethod
    def body(self) -> Sequence[BodyLayer]:
        """The layers, first to last."""

    @abstractmethod
    def fuse(self, captured: Float[Tensor, "*tokens features"]) -> Float[Tensor, "*tokens hidden"]:
        """The first layer's `hidden` from the target's hidden states."""

    @abstractmethod
    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The next draft step's `hidden` from the last layer's output."""

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        """The first layer's embedding of tokens (ids of the target) at these rotary positions."""

    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens draft_vocab"]:
        """Logits over the draft vocabulary, float32."""
        return self.lm_head(self.norm(hidden)).float()

    def scored(self, hidden: Float[Tensor, "rows hidden"],
               step: int) -> tuple[Float[Tensor, "rows hidden"], Float[Tensor, "draft_vocab hidden"]]:
        return self.norm(hidden), self.lm_head.weight
