"""Settings of operation `sft`. Importing this file imports no torch."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from model_ops.training import TuningSettings


class SftSettings(TuningSettings):
    """Supervised fine-tuning on assistant tokens only. With adapters, the default learning rate is ten times the preset's
    (Schulman et al., "LoRA Without Regret", 2025)."""

    enabled: bool = Field(True, description="false: the base model is not fine-tuned, and the next stage starts from it")
    dataset: str | None = Field(
        None,
        description="Name of the dataset under `datasets.named` that is trained on. Left out: `datasets.sft`, or the "
        "teacher's answers",
    )
    continue_from: Literal["last"] | None = Field(
        None,
        description="last: continue the lake's last fine-tuned model of the same base, on the rows that it has not "
        "learnt and `replay` others for each. Left out: start from the base model, on all rows",
    )
    replay: float = Field(
        0.5, ge=0, le=100, description="Rows that were learnt before, for each new one; needs `continue_from`"
    )
    reasoning_budget: int | None = Field(
        None,
        ge=1,
        le=2**24,
        description="Tokens after which reasoning ends. Longer reasoning is cut there and closed, and only the closing mark "
        "and the end of turn are learnt; every other answer is left out. Left out: answers are learnt whole",
    )
    z_loss: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Weight of the squared log-normaliser of the softmax; 1e-4 is a usual value, 0 switches it off",
    )

    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TuningSettings.STAY_OPEN,
        "continue_from": "the base model",
        "dataset": "`datasets.sft`, or the teacher's answers",
        "reasoning_budget": "answers are learnt whole",
    }

    @model_validator(mode="after")
    def _budget_can_be_learnt(self):
        if self.reasoning_budget is None:
            return self
        longest = self.resolved().max_length
        if self.reasoning_budget >= longest:
            raise ValueError(
                f"reasoning_budget {self.reasoning_budget} and the closing mark do not fit into max_length {longest}: raise "
                "max_length to the budget and what prompt and answer need, or lower reasoning_budget"
            )
        return self


class SecondSftSettings(SftSettings):
    """A second stage of supervised fine-tuning: it goes on from the weights of the first one, on a later dataset and with a
    schedule of its own."""

    enabled: bool = Field(True, description="false: there is no second stage")
    dataset: str | None = Field(
        None, description="Name of the dataset under `datasets.named` that is trained on. Left out: `datasets.sft`"
    )

    STAY_OPEN: ClassVar[dict[str, str]] = {**SftSettings.STAY_OPEN, "dataset": "`datasets.sft`"}

    @model_validator(mode="after")
    def _continues_the_first_stage(self):
        if self.continue_from is not None:
            raise ValueError("a second stage continues the first one's model: leave continue_from out, or set it in sft")
        return self
