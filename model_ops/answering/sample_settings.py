"""Settings of operation `sample_answers`. Importing this file imports no torch."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from model_ops.jobs import Seed, Settings

SAMPLED_WITH = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Fields of a request besides temperature and top_p that the built-in generator samples with."""
RENDERED_WITH = ("chat_template_kwargs", "documents", "reasoning_effort")
"""Fields of a request that the chat template reads."""
GENERATED_WITH = (*SAMPLED_WITH, *RENDERED_WITH)


class SampleSettings(Settings):
    """Answers of a model to prompts, for others to learn."""

    model: str | None = Field(None, description="Hugging Face id of the model, where the job has no input `model`")
    temperature: float = Field(1.0, ge=0, le=100, description="Temperature, 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus")
    request: dict[str, Any] = Field(default_factory=dict, description="Other fields of every prompt's request")
    max_new_tokens: int = Field(2_048, ge=1, le=2**20, description="Most tokens of an answer")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that are decoded together")
    seed: Seed = Field(0, description="Seed of sampling")
