"""Settings of operation `merge`. Importing this file imports no torch."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from model_ops.files import LocalPath
from model_ops.jobs import Settings

BASE, TRAINED, PREFERRED, REINFORCED = "base", "sft", "preference", "rft"
"""Words for models of the lake: the base model, the fine-tuned one, and those trained on preferences and on rewards."""
LAKE_MODELS = (BASE, TRAINED, PREFERRED, REINFORCED)

MOST_CANDIDATES = 100
_Model = Annotated[
    str, Field(min_length=1), LocalPath("folder", f"directories of models, `{TRAINED}` or `{BASE}`", LAKE_MODELS)
]


class MergeSettings(Settings):
    """The weighted mean of models that have the same shapes and the same tokenizer."""

    method: Literal["linear"] = Field("linear", description="linear: weighted mean")
    models: list[_Model] | None = Field(
        None,
        min_length=2,
        max_length=16,
        description="What is merged: `rft` (the model trained on rewards), `preference` (the model trained on preferences), "
        "`sft` (the fine-tuned model), `base` (the base model), or directories of models. Left "
        "out: the last of the trained models and the one before it",
    )
    weights: list[Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]] | Literal["search"] | None = Field(
        None,
        description="One weight for each model. search: the ones of a grid with the lowest loss on held-out rows. Left "
        "out: all alike",
    )
    search_steps: int = Field(4, ge=1, le=20, description="weights: search. The grid's step is 1 / search_steps")
    search_tokens: int = Field(8_192, ge=1, le=10**8, description="weights: search. Tokens of held-out rows for each candidate")

    @model_validator(mode="before")
    @classmethod
    def _is_linear(cls, given: Any) -> Any:
        if isinstance(given, dict):
            if given.get("method") not in (None, "", "linear"):
                raise ValueError(
                    "method can only be linear, the weighted mean: run mergekit on the directories of the models for another "
                    "one, and give its result as base_model"
                )
            if others := [key for key in ("scale", "density", "seed") if key in given]:
                raise ValueError(f"linear has no {others[0]}: leave {' and '.join(others)} out")
        return given

    @model_validator(mode="after")
    def _lists_each_model_with_its_weight(self):
        count = len(self.listed)
        if len(set(self.listed)) < count:
            raise ValueError("models lists a model twice: give each once, with a greater weight")
        if isinstance(self.weights, list):
            if len(self.weights) != count:
                raise ValueError(f"weights has {len(self.weights)} numbers for {count} models: give one for each")
            if not sum(self.weights) > 1e-6:
                raise ValueError(
                    f"the weights add up to {sum(self.weights):g}, and a mean divides by their sum: give weights with a sum "
                    "above 0"
                )
        if self.weights == "search" and (tried := self.candidate_count) > MOST_CANDIDATES:
            raise ValueError(
                f"search would try {tried} merges, and {MOST_CANDIDATES} is the most: list fewer models, lower "
                "search_steps, or give weights"
            )
        return self

    def resolved(self):
        """The settings with `models` filled."""
        return self.model_copy(update={"models": self.listed})

    @property
    def listed(self) -> list[str]:
        """The merged models, in the order of their weights."""
        return self.models or [TRAINED, BASE]

    @property
    def reads_base(self) -> bool:
        """Whether the merge reads the base model."""
        return BASE in self.listed

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
        """Merges that a search tries: the points of a simplex with this step."""
        return math.comb(self.search_steps + len(self.listed) - 1, len(self.listed) - 1)

    @property
    def directories(self) -> list[str]:
        """The models that are not of the lake."""
        return [model for model in self.listed if model not in LAKE_MODELS]
