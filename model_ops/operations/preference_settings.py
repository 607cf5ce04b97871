"""Settings of operation `preference`. Importing this file imports no torch."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from model_ops.preferences import SampledPairSettings
from model_ops.training import RowsOf, TrainingSettings, TuningSettings

OF_PAIRS = ("dpo", "ipo", "robust_dpo", "apo_zero", "simpo", "orpo")
OF_ANSWERS = ("kto", "bco", "apo_zero_unpaired")
"""Losses that judge an answer by itself."""
LOSSES = (*OF_PAIRS, *OF_ANSWERS, "sft")
READ_BY: dict[str, tuple[str, ...]] = {
    "margin": ("simpo",), "label_noise": ("robust_dpo",), "nll_weight": ("orpo",), "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
}  # fmt: skip
"""Key of a loss -> the losses that read it; `beta` is read by all but sft."""
INSTEAD_OF = {
    "dpo_norm": "ipo or simpo, which count by token",
    "ld_dpo": "simpo, which counts by token",
    "wpo": "dpo, with on_policy for pairs of the model's own answers",
    "rpo": "`[{dpo: 1}, {sft: 0.005}]` with `beta: 0.01`, which is near it",
    "apo_down": "dpo",
    "cpo": "orpo or simpo",
}
"""A loss that existed once -> what to write instead."""


def as_weights(given: Any) -> Any:
    """Weights by loss, of a name or of a list of one-key mappings. Raises ValueError for a loss that there is not."""
    parts = [{given: 1.0}] if isinstance(given, str) else given if isinstance(given, list) else [given]
    if given is None or not all(isinstance(part, dict) for part in parts):
        return given
    names = [name for part in parts for name in part]
    for name in names:
        if name in INSTEAD_OF:
            raise ValueError(f"the loss {name} is gone: write {INSTEAD_OF[name]}")
        if name not in LOSSES:
            raise ValueError(f"there is no loss {name}; there are {', '.join(LOSSES)}")
        if names.count(name) > 1:
            raise ValueError(f"loss names {name} twice: add up its weights")
    if not names:
        raise ValueError("loss is empty: name a loss, or leave it out")
    return {name: weight for part in parts for name, weight in part.items()}


_NAME, _WEIGHTS = {"enum": list(LOSSES)}, {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
LossWeights = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=1_000)]] | None,
    BeforeValidator(as_weights),
    WithJsonSchema({"anyOf": [_NAME, _WEIGHTS, {"type": "array", "items": _WEIGHTS}, {"type": "null"}]}),
]


class PreferenceTuningSettings(TuningSettings):
    """Training on preferences: answers that users chose become likelier than those that they rejected."""

    enabled: bool = Field(True, description="false: nothing is trained on preferences")
    preset: Literal["quick", "balanced", "thorough", "smollm3"] = Field(  # type: ignore[assignment]  # one more than the others
        "balanced", description="Fills every key that is left out. smollm3: APO-zero as SmolLM3 was trained"
    )
    loss: LossWeights = Field(
        None,
        description="A loss, or losses with their weights, such as `[{dpo: 0.8}, {bco: 0.2}, {sft: 1.0}]`; "
        "[preference.md](preference.md#losses) says when to choose which. Left out: dpo, or by preset",
    )
    beta: float | None = Field(
        None, gt=0, le=1_000, description="How strongly the loss holds the model near its start. Left out: each loss's own"
    )
    margin: float | None = Field(None, ge=0, le=1_000, description="simpo: margin that is asked for. Left out: 1.375")
    label_noise: float | None = Field(
        None, ge=0, lt=0.5, description="robust_dpo: share of wrong labels. Left out: 1 - the row's confidence, at most 0.45"
    )
    nll_weight: float | None = Field(
        None, ge=0, le=1_000, description="orpo: weight of the chosen answer's negative log-likelihood. Left out: 1"
    )
    desirable_weight: float | None = Field(None, gt=0, le=1_000, description="kto: weight of desirable answers. Left out: 1")
    undesirable_weight: float | None = Field(
        None, gt=0, le=1_000, description="kto: weight of undesirable answers. Left out: 1"
    )
    rows: RowsOf | None = Field(
        None,
        description="Pairs, single answers with a verdict, or both. Left out: pairs; both where a loss judges single answers",
    )
    on_policy: SampledPairSettings | None = Field(
        None,
        description="The model answers prompts while it trains, and learns from pairs of its own answers "
        "([preference.md](preference.md#sampling-while-training)). `epochs` are then passes over the prompts. Left out: it "
        "learns the dataset's rows",
    )
    overflow: Literal["drop"] = Field("drop", description="What happens to a pair longer than `max_length`: it is left out")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        **{
            name: {**values, "epochs": epochs, "learning_rate": rate}
            for (name, values), epochs, rate in zip(
                TrainingSettings.PRESETS.items(), (1.0, 1.0, 2.0), (5e-6, 5e-6, 1e-6), strict=True
            )
        },
        "smollm3": {
            "loss": {"apo_zero": 1.0},
            "beta": 0.05,
            "epochs": 1.0,
            "learning_rate": 1e-6,
            "warmup_share": 0.1,
            "gradient_clip": 0.2,
            "tokens_per_step": 131_072,
            "max_length": 24_576,
        },
    }
    """Rates of `quick` and `balanced` are for data of some hundred pairs, those of the others for many steps."""
    COMMON: ClassVar[dict[str, Any]] = {**TuningSettings.COMMON, "loss": {"dpo": 1.0}, "most_epochs": 3.0}
    ADAPTERS_LEARN_FASTER: ClassVar[float] = 20.0
    LEAST_STEPS: ClassVar[int] = 30
    FEW_STEPS: ClassVar[int] = 10
    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TuningSettings.STAY_OPEN,
        "beta": "each loss has its own",
        "rows": "the losses say which",
        "on_policy": "the dataset's rows",
        **dict.fromkeys(READ_BY, "each loss has its own"),
    }

    @model_validator(mode="after")
    def _losses_agree(self):
        for sentence in self._contradictions():
            raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Sentences about keys that contradict each other."""
        losses = self.losses
        for key, readers in READ_BY.items():
            if getattr(self, key) is not None and not set(readers) & losses.keys():
                yield f"{key} is given, and only {', '.join(readers)} reads it: leave {key} out, or name such a loss"
        if losses.keys() == {"sft"}:
            yield "loss is sft alone, which compares nothing: name a loss that does, or fine-tune in the section sft"
        pairs = [name for name in losses if name in OF_PAIRS]
        if self.rows == "unpaired" and pairs:
            yield f"rows is unpaired, and {pairs[0]} compares two answers: choose {', '.join(OF_ANSWERS)}, or leave rows out"
        if self.on_policy is not None:
            if "kto" in losses:
                yield "on_policy makes pairs as it goes, and kto needs all rows before: choose apo_zero_unpaired or dpo"
            if self.rows is not None:
                yield "on_policy learns from the model's own answers, so nothing reads rows: leave it out"
            if self.on_policy.max_new_tokens >= (self.max_length or math.inf):
                yield (
                    f"on_policy.max_new_tokens {self.on_policy.max_new_tokens} leaves no room for a prompt in max_length "
                    f"{self.max_length}: raise max_length, or lower max_new_tokens"
                )

    @property
    def prompts_a_step(self) -> int | None:
        return None if self.on_policy is None else self.on_policy.prompts_per_step

    @property
    def losses(self) -> dict[str, float]:
        """Name of each loss -> its weight."""
        return self.resolved().loss or {}

    @property
    def rows_read(self) -> RowsOf:
        """`rows`, or what the losses need."""
        return self.rows or ("both" if set(OF_ANSWERS) & self.losses.keys() else "pairs")

    @property
    def given(self) -> dict[str, float]:
        """Keywords of the losses that are set (model_ops.preferences.preference)."""
        names = {"noise" if key == "label_noise" else key: getattr(self.resolved(), key) for key in ("beta", *READ_BY)}
        return {name: value for name, value in names.items() if value is not None}
