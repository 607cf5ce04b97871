"""Settings of operation `sft`. Importing this file imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model_ops.training.tuning_settings import TuningSettings


class SftSettings(TuningSettings):
    """Supervised fine-tuning on assistant tokens only. With adapters, the default learning rate is ten times the preset's
    (Schulman et al., "LoRA Without Regret", 2025)."""

    enabled: bool = Field(True, description="false: the base model is not fine-tuned, and the next stage starts from it")
    z_loss: float = Field(
        0.0, ge=0, le=1, description="Weight of the squared log-normaliser of the softmax; 1e-4 is a usual value, 0 switches "
        "it off")
    loss_head: Literal["auto", "chunked", "torch", "liger"] = Field(
        "auto", description="Implementation of the loss at the head. auto: the fastest exact one, measured on an accelerator")
