"""Settings of a training run, and how presets fill what is left open. Importing this module imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Preset = Literal["quick", "balanced", "thorough"]
ActivationCheckpointing = Literal["none", "selective", "full"]


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused, values are checked where they enter."""

    model_config = ConfigDict(extra="forbid")


class TrainingSettings(Settings):
    """What every training stage shares. Values left open (None) come from the preset."""

    preset: Preset = Field("balanced", description="fills every value left open below")
    steps: int | None = Field(None, ge=1, description="optimizer steps; where given, epochs is not used")
    epochs: float | None = Field(None, gt=0, description="passes over the training rows")
    learning_rate: float | None = Field(None, gt=0)
    warmup_share: float | None = Field(None, ge=0, lt=1, description="share of the steps spent warming up")
    final_learning_rate_share: float | None = Field(None, ge=0, le=1, description="floor of the cosine decay")
    tokens_per_step: int | None = Field(None, ge=64, description="tokens in one optimizer step")
    max_length: int | None = Field(None, ge=16, description="tokens in a packed row, and of the longest document")
    micro_batch_tokens: int | None = Field(
        None, ge=16, description="tokens that go through the model at once, unless one document has more; open: 4,096, or a "
        "packed row of max_length")
    weight_decay: float | None = Field(None, ge=0)
    gradient_clip: float | None = Field(None, gt=0)
    checkpoint_every: int | None = Field(None, ge=1, description="optimizer steps between checkpoints")
    checkpoint_seconds: float = Field(600.0, gt=0, description="a checkpoint is also written when the last is this old")
    keep_checkpoints: int = Field(2, ge=1, description="whole checkpoints that are kept, the newest ones")
    precision: Literal["bfloat16", "float32"] = Field("bfloat16", description="of products; master weights are float32")
    activation_checkpointing: ActivationCheckpointing = Field(
        "none", description="what blocks keep for the backward pass: everything, results of products, or only their inputs")
    offload_activations: bool = Field(False, description="kept inputs of blocks wait in host memory (CUDA)")
    seed: int = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 1.0, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 2.0, "learning_rate": 2e-5, "tokens_per_step": 65_536, "max_length": 4_096},
        "thorough": {"epochs": 4.0, "learning_rate": 1e-5, "tokens_per_step": 131_072, "max_length": 8_192},
    }
    COMMON: ClassVar[dict[str, Any]] = {
        "warmup_share": 0.03,
        "final_learning_rate_share": 0.1,
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "checkpoint_every": 50,
    }

    def resolved(self):
        """The same settings with every open value filled from the preset."""
        values = {**self.COMMON, **self.PRESETS[self.preset]}
        if self.steps is not None:
            values.pop("epochs", None)
        elif self.epochs is not None:
            values.pop("steps", None)
        return self.model_copy(update={name: value for name, value in values.items() if getattr(self, name) is None})
