"""Settings of preference training on the model's own answers. Importing this file imports no torch."""

from typing import Literal

from pydantic import Field

from model_ops.graders import GraderSettings
from model_ops.jobs import Settings


class SampledPairSettings(Settings):
    """Pairs of the model's own answers: it answers prompts while it trains, a grader says how good each answer is, and the best
    one is preferred to the worst. Semi-online: every `sync_steps` steps it answers anew (arXiv 2506.21495)."""

    prompts: Literal["preference_dataset", "rl_prompts"] = Field(
        "preference_dataset",
        description="Dataset whose training prompts are answered. Rows of rl_prompts bring what verifies an answer; those of "
        "preference_dataset bring their chosen answer",
    )
    prompts_per_step: int = Field(
        16, ge=1, le=65_536, description="Prompts that are answered for each step; a prompt gives one pair or none"
    )
    answers: int = Field(4, ge=2, le=256, description="Answers to each prompt")
    grader: GraderSettings = Field(description="Who says how good an answer is: [preference.md](preference.md#graders)")
    sync_steps: int = Field(
        10, ge=1, le=100_000, description="Steps that learn from one round of answers. 1: always the newest model answers"
    )
    least_difference: float = Field(
        0.0, ge=0, le=1e6, description="Grades that differ by no more than this are a tie, which is not learnt"
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature at which the model samples")
    max_new_tokens: int = Field(
        256, ge=1, le=1_000_000, description="Longest sampled answer. One that is cut is never preferred"
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that are sampled at once")
