"""What drafters share that draft token after token by running one body again on its own output: EAGLE-3, P-EAGLE, MTP.

    hidden = model.fuse(captured)                                   # step 0 reads the target's states
    hidden = model.fed_back(hidden)                                 # a later one what the body said before
    for layer in model.body:                                        # each a `draft_layers.BodyLayer`
        ...
    logits = model.logits(hidden)

Training (`training_time_test`) and decoding (`eagle3_drafter`) run these parts and know no architecture.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.speculators.draft_layers import BodyLayer
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.training_time_test import Documents, unroll

if TYPE_CHECKING:
    from model_ops.speculators.eagle3_drafter import Eagle3Drafter


class RepeatedBody(DraftModel):
    """rotary: transformers' rotary embedding of its positions; norm, lm_head: from the body's output to its logits; fc: the
    first projection of what it reads, whose dtype is the module's."""

    rotary: nn.Module
    norm: nn.Module
    lm_head: nn.Linear
    fc: nn.Linear

    @property
    @abstractmethod
    def body(self) -> Sequence[BodyLayer]:
        """All layers, in their order."""

    @abstractmethod
    def fuse(self, captured: Float[Tensor, "*tokens features"]) -> Float[Tensor, "*tokens hidden"]:
        """The target's states as the first layer's `hidden`."""

    @abstractmethod
    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The body's output as the next draft step's `hidden`."""

    @abstractmethod
    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        """What the first layer reads of the tokens (the target's ids) beside the states at these rotary positions."""

    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens draft_vocab"]:
        """Logits over the draft vocabulary, float32."""
        return self.lm_head(self.norm(hidden)).float()

    def unroll(self, documents: Documents, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        return unroll(self, documents, steps)

    def scored(self, hidden: Float[Tensor, "rows hidden"],
               step: int) -> tuple[Float[Tensor, "rows hidden"], Float[Tensor, "draft_vocab hidden"]]:
        return self.norm(hidden), self.lm_head.weight

    def drafter(self, greedy: bool = False) -> Eagle3Drafter:
        from model_ops.speculators.eagle3_drafter import Eagle3Drafter

        return Eagle3Drafter(self, greedy)
