"""MEDUSA: one head for each draft, on the target's last hidden state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import Architecture
from model_ops.speculators.medusa.verification import verify_medusa
from model_ops.speculators.serving import VllmOptions
from model_ops.speculators.settings import SpeculatorSettings

if TYPE_CHECKING:
    from torch import Tensor

    from model_ops.decoding import Runner
    from model_ops.speculators.draft_model import DraftModel


class MedusaSettings(SpeculatorSettings):
    """MEDUSA (arXiv 2401.10774)."""

    architecture: Literal["medusa"] = Field(description="Kind of drafter")
    eta: float | None = Field(
        None, ge=0, le=1000, description="lk_lambda: KL weighs exp(-eta alpha), TV the rest. Left out: 10"
    )
    residual_layers: int | None = Field(None, ge=1, le=64, description="Residual layers of each head. Left out: 1")
    shared_head: bool | None = Field(
        None, description="One output matrix for all heads. false: one for each head, as in the paper. Left out: true"
    )

    # eta: LK losses, arXiv 2602.23881, section on MEDUSA
    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "eta": 10.0, "residual_layers": 1, "shared_head": True}

    @property
    def drafts_at_once(self) -> int:
        return self.num_speculative_tokens


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.medusa.network import Medusa

    return Medusa


def _build(settings: MedusaSettings, target: Runner, target_ids: Tensor) -> DraftModel:
    from model_ops.speculators.medusa.network import Medusa

    return Medusa.for_target(
        target,
        target_ids,
        num_heads=settings.num_speculative_tokens,
        residual_layers=settings.residual_layers,
        shared_head=settings.shared_head,
    )


MEDUSA = Architecture(
    name="medusa",
    settings=MedusaSettings,
    build=_build,
    model_class=_model_class,
    verify=verify_medusa,
    recognises=lambda config: config.get("model_type") == "medusa",
    vllm=VllmOptions("medusa", fixed_length=True),
)  # its heads always propose their most likely token
