"""Settings of full fine-tuning, LoRA and QLoRA. Importing this file imports no torch."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from model_ops.adapters import LoraSettings
from model_ops.jobs import filled
from model_ops.training.settings import TrainingSettings


class TuningSettings(TrainingSettings):
    """The method of fine-tuning, and the shape of adapters."""

    method: Literal["full", "lora", "qlora"] = Field(
        "full",
        description="full: train every weight. lora: train adapters, weights frozen. qlora: the same with the "
        "frozen weights in 4 bits (needs the extra `qlora`)",
    )
    lora: LoraSettings | None = Field(None, description="The adapters, for method lora or qlora. Left out: the defaults below")

    STAY_OPEN: ClassVar[dict[str, str]] = {**TrainingSettings.STAY_OPEN, "lora": "method full has no adapters"}
    ADAPTERS_LEARN_FASTER: ClassVar[float] = 10.0

    @model_validator(mode="after")
    def _adapters_only_where_asked_for(self):
        if self.method == "full" and self.lora is not None:
            raise ValueError(
                "lora is set, but method is full, which trains every weight: set method to lora or qlora, or leave lora out"
            )
        return self

    @model_validator(mode="after")
    def _clips_trained_weights(self):
        if self.method != "full" and self.qk_clip is not None:
            raise ValueError(
                f"qk_clip scales query and key weights, which are frozen with method {self.method}: set method to full, "
                "or leave qk_clip out"
            )
        return self

    def resolved(self) -> Self:
        """Missing values from the preset; with adapters a higher learning rate and the defaults of LoraSettings."""
        settings = super().resolved()
        if self.method == "full":
            return settings
        changes: dict[str, Any] = {"lora": self.lora or LoraSettings()}
        if self.learning_rate is None:
            changes["learning_rate"] = filled(settings.learning_rate) * self.ADAPTERS_LEARN_FASTER
        return settings.model_copy(update=changes)
