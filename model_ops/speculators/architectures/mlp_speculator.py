"""MLP speculator: a recurrent MLP that begins from the target's last hidden state. No current server loads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import Architecture
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.verify_last_state import verify_mlp

if TYPE_CHECKING:
    from torch import Tensor

    from model_ops.decoding.runner import Runner
    from model_ops.speculators.draft_model import DraftModel


class MlpSpeculatorSettings(SpeculatorSettings):
    """MLP speculator (arXiv 2404.19124)."""

    architecture: Literal["mlp_speculator"] = Field(description="Kind of drafter")
    inner_dim: int | None = Field(
        None, ge=1, le=2**20, description="Width of its state. Left out: the target's width")
    tie_weights: bool | None = Field(
        None, description="Its steps share their weights. Left out: true where there are several steps")
    scale_input: bool | None = Field(
        None, description="The hidden state of the target is normalised first. Left out: true")

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "scale_input": True}
    STAY_OPEN: ClassVar[dict[str, str]] = {**SpeculatorSettings.STAY_OPEN, "inner_dim": "the target's width"}

    @property
    def drafts_at_once(self) -> int:
        return self.num_speculative_tokens

    def derived(self) -> dict[str, Any]:
        return {**super().derived(), "tie_weights": self.num_speculative_tokens > 1}

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.tie_weights and self.num_speculative_tokens == 1:
            yield "tie_weights shares weights between steps, and num_speculative_tokens is 1: leave it out"


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.mlp_speculator import MlpSpeculator

    return MlpSpeculator


def _build(settings: MlpSpeculatorSettings, target: Runner, target_ids: Tensor) -> DraftModel:
    from model_ops.speculators.mlp_speculator import MlpSpeculator

    return MlpSpeculator.for_target(target, num_heads=settings.num_speculative_tokens, inner_dim=settings.inner_dim,
                                    tie_weights=settings.tie_weights, scale_input=settings.scale_input)


MLP_SPECULATOR = Architecture(
    name="mlp_speculator", settings=MlpSpeculatorSettings, build=_build, model_class=_model_class, color="#8a4f9e",
    verify=verify_mlp, recognises=lambda config: config.get("model_type") == "mlp_speculator")
