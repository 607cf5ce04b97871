"""Settings of operation `evaluate`: a recipe's section, and the job's settings. Importing this file imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from model_ops.settings import Seed, Settings


class EvaluationSettings(Settings):
    """Measures held-out likelihood of each model, recovery of the quantized one, acceptance length of the drafters."""

    rows: int | None = Field(None, ge=1, description="Most held-out rows for the likelihood. Left out: all")
    prompts: int = Field(200, ge=1, description="Held-out prompts that the drafters are measured on")
    max_new_tokens: int = Field(128, ge=1, le=2**20, description="Most tokens of one measured answer")
    temperatures: list[Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]] = Field(
        default_factory=lambda: [0.0, 1.0], description="Sampling temperatures to measure at, 0 is greedy; the temperature of "
        "the drafter's answers is always among them")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers decoded together")
    max_length: int = Field(4_096, ge=16, le=2**24, description="Tokens of the longest held-out row; a longer one is cut")
    seed: Seed = Field(0, description="Seed of the choice of rows and prompts, and of sampling")


class EvaluateSettings(EvaluationSettings):
    """Settings of the job: the recipe's section `evaluation`, and the draft length that is served."""

    num_speculative_tokens: int = Field(3, ge=1, le=16, description="Tokens drafted per verification (K)")
