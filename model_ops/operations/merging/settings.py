"""Settings of operation `merge`. Importing this file imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model_ops.jobs import Seed, Settings

BASE, TRAINED, PREFERRED, REINFORCED = "base", "sft", "preference", "rft"
"""Words for models of the lake: the base model, the fine-tuned one, and those trained on preferences and on rewards."""
LAKE_MODELS = (BASE, TRAINED, PREFERRED, REINFORCED)

FROM_BASE = ("task_arithmetic", "ties", "dare_linear", "dare_ties")
"""Methods that add differences from the base model to it."""
SPARSE = ("ties", "dare_linear", "dare_ties")
MOST_CANDIDATES = 100

Method = Literal["linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties"]


class MergeSettings(Settings):
    """A merge of models that have the same shapes and the same tokenizer."""

    method: Method = Field(
        "linear",
        description="linear: weighted mean. slerp: two models, along the arc between them. task_arithmetic: base + "
        "weighted differences from it. ties: of each difference only the largest values, and of these the ones with the sign "
        "of their sum. dare_linear, dare_ties: of each difference a random share, scaled up by 1 / density",
    )
    models: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="What is merged: `rft` (the model trained on rewards), `preference` (the model trained on preferences), "
        "`sft` (the fine-tuned model), `base` (the base model), or directories of models. Methods that add differences to the "
        "base model do not list it. Left out: the last of the trained models and the one before it, or the last one alone",
    )
    weights: list[Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]] | Literal["search"] | None = Field(
        None,
        description="One weight for each model. search: the ones of a grid with the lowest loss on held-out rows. Left "
        "out: all alike (linear, slerp), or 1 each",
    )
    scale: float | None = Field(
        None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Factor of the summed differences (mergekit: lambda), for methods "
        "that add to the base. Left out: 1, or searched with weights: search",
    )
    density: float | None = Field(
        None, gt=0, le=1, description="ties, dare: share of each difference's values that is kept. Left out: 0.5"
    )
    seed: Seed = Field(0, description="dare: seed of the choice of values")
    search_steps: int = Field(4, ge=1, le=20, description="weights: search. The grid's step is 1 / search_steps")
    search_tokens: int = Field(8_192, ge=1, le=10**8, description="weights: search. Tokens of held-out rows for each candidate")

    @model_validator(mode="after")
    def _fits_the_method(self):
        listed = self.listed
        count = len(listed)
        if self.method in FROM_BASE and BASE in listed:
            raise ValueError(
                f"models lists base, but {self.method} adds the other models' differences from base to it: take "
                "base out of models"
            )
        if self.method == "slerp" and count != 2:
            raise ValueError(f"slerp is between two models, and models lists {count}: list two, or choose linear")
        if self.method == "linear" and count < 2:
            raise ValueError("linear is a mean of several models, and models lists one: list another")
        if len(set(listed)) < count:
            raise ValueError("models lists a model twice: give each once, with a greater weight")
        if isinstance(self.weights, list):
            if len(self.weights) != count:
                raise ValueError(f"weights has {len(self.weights)} numbers for {count} models: give one for each")
            if self.method not in ("task_arithmetic", "dare_linear", "dare_ties") and not sum(self.weights) > 1e-6:
                raise ValueError(
                    f"the weights add up to {sum(self.weights):g}, and {self.method} divides by their sum: give "
                    "weights with a sum above 0"
                )
            if self.method == "slerp" and min(self.weights) < 0:
                raise ValueError("a weight is below 0, and slerp stays between its two models: give weights from 0")
        return self

    @model_validator(mode="after")
    def _says_what_the_method_reads(self):
        if self.scale is not None and self.method not in FROM_BASE:
            raise ValueError(f"{self.method} has no scale: leave scale out, or choose one of {', '.join(FROM_BASE)}")
        if self.density is not None and self.method not in SPARSE:
            raise ValueError(f"{self.method} has no density: leave density out, or choose one of {', '.join(SPARSE)}")
        if self.weights == "search" and (tried := self.candidate_count) > MOST_CANDIDATES:
            raise ValueError(
                f"search would try {tried} merges, and {MOST_CANDIDATES} is the most: list fewer models, lower "
                "search_steps, or give weights"
            )
        return self

    def resolved(self):
        """The settings with `models` and `density` filled by the method."""
        density = 0.5 if self.density is None and self.method in SPARSE else self.density
        return self.model_copy(update={"models": self.listed, "density": density})

    @property
    def listed(self) -> list[str]:
        """The merged models, in the order of their weights."""
        return self.models or ([TRAINED] if self.method in FROM_BASE else [TRAINED, BASE])

    @property
    def reads_base(self) -> bool:
        """Whether the merge reads the base model."""
        return self.method in FROM_BASE or BASE in self.listed

    @property
    def reads_preferred(self) -> bool:
        """Whether the merge reads the model trained on preferences, beside the later one that was trained on rewards."""
        return {REINFORCED, PREFERRED} <= set(self.listed)

    @property
    def reads_fine_tuned(self) -> bool:
        """Whether the merge reads the fine-tuned model, beside a later one."""
        return TRAINED in self.listed and bool({REINFORCED, PREFERRED} & set(self.listed))

    @property
    def reads_rows(self) -> bool:
        """Whether the merge looks at rows of a dataset."""
        return self.weights == "search"

    @property
    def candidate_count(self) -> int:
        """Merges that a search tries: the points of a simplex with this step, times the scales."""
        points = math.comb(self.search_steps + len(self.listed) - 1, len(self.listed) - 1)
        return points * (self.search_steps if self.method in FROM_BASE and self.scale is None else 1)

    @property
    def directories(self) -> list[str]:
        """The models that are not of the lake."""
        return [model for model in self.listed if model not in LAKE_MODELS]
