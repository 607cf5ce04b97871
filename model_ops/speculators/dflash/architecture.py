"""DFlash: a whole block of drafts in one pass, with the target's own embedding and head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, SpeculatorsLayout
from model_ops.speculators.dflash.config import captured_boundaries
from model_ops.speculators.dflash.verification import verify_dflash, verify_dflash_in_speculators_layout
from model_ops.speculators.serving import SglangOptions, VllmOptions
from model_ops.speculators.settings import SpeculatorSettings

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


class DFlashSettings(SpeculatorSettings):
    """DFlash (arXiv 2602.06036)."""

    architecture: Literal["dflash"] = Field(description="Kind of drafter")
    num_layers: int | None = Field(
        None, ge=1, le=16, description="Decoder layers of the drafter. Left out: 1, 3 or 5 by preset"
    )
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="Token id that stands for a token not yet drafted; its embedding is the target's. Left out: "
        "the padding token or the last of the vocabulary",
    )
    block_size: int | None = Field(
        None,
        ge=2,
        le=64,
        description="Tokens of a block, the last verified one and the drafts. Left out: num_speculative_tokens + 1",
    )
    captured_layers: int | None = Field(
        None,
        ge=1,
        le=1_024,
        description="Number of the target's layers whose states it reads. Left out: 5, or as many as a shallow target has",
    )
    gamma: float | None = Field(None, gt=0, description="Draft k weighs exp(-(k - 1) / gamma), k counting from 1. Left out: 4")
    anchors: int | None = Field(
        None,
        ge=1,
        description="Positions of an answer at which a training step drafts, chosen anew each time. Left "
        "out: 64, 256 or 512 by preset",
    )

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "gamma": 4.0}
    STAY_OPEN: ClassVar[dict[str, str]] = {
        **SpeculatorSettings.STAY_OPEN,
        "mask_token_id": "by the target's vocabulary",
        "captured_layers": "5, or as many as a shallow target has",
    }
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        name: {**SpeculatorSettings.PRESETS[name], **own}
        for name, own in {
            "quick": {"num_layers": 1, "anchors": 64},
            "balanced": {"num_layers": 3, "anchors": 256},
            "thorough": {"num_layers": 5, "anchors": 512},
        }.items()
    }

    @property
    def drafts_at_once(self) -> int:
        """Drafts of a block, with a training step for each."""
        return self.num_speculative_tokens if self.block_size is None else self.block_size - 1

    @property
    def positions_per_answer(self) -> int | None:
        return self.anchors

    @property
    def step_ratio(self) -> float:
        return self.step_decay if self.gamma is None else math.exp(-1 / self.gamma)

    def derived(self) -> dict[str, Any]:
        return {**super().derived(), "ttt_steps": self.drafts_at_once, "block_size": self.num_speculative_tokens + 1}

    def contradictions(self) -> Iterator[str]:
        if self.block_size is not None and self.block_size <= self.num_speculative_tokens:
            yield (
                f"a block of block_size {self.block_size} holds {self.block_size - 1} drafts and "
                f"num_speculative_tokens is {self.num_speculative_tokens}: set block_size to at least one more"
            )
        if self.ttt_steps not in (None, self.drafts_at_once):
            yield (
                f"ttt_steps is {self.ttt_steps}, but dflash has a step for each of a block's drafts "
                f"({self.drafts_at_once}): leave ttt_steps out"
            )
        yield from super().contradictions()
        if self.step_decay != type(self).model_fields["step_decay"].default:
            yield "step_decay is set, but dflash weighs its drafts by gamma: set gamma, or step_weights"


def _check_layers(target: Path, config: Config) -> None:
    """Refuses a target with too few layers to read states from."""
    captured_boundaries(config.get("num_hidden_layers") or 0, None)


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.dflash.network import DFlash

    return DFlash


DFLASH = Architecture(
    name="dflash",
    settings=DFlashSettings,
    model_class=_model_class,
    verify=verify_dflash,
    recognises=lambda config: config.get("architectures") == ["DFlashDraftModel"] and "speculators_model_type" not in config,
    speculators_layout=SpeculatorsLayout("dflash", verify_dflash_in_speculators_layout),
    check_target=_check_layers,
    vllm=VllmOptions("dflash", SAMPLED_DRAFTS),
    sglang=SglangOptions("DFLASH", drafts_in_one_step=True),
)
