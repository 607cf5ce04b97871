"""Settings of a training run, with presets for missing values. Importing this module imports no torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from model_ops.jobs import Seed, Settings, filled
from model_ops.machine import Precision
from model_ops.parallel import MeshSettings

Preset = Literal["quick", "balanced", "thorough"]
Overflow = Literal["truncate", "split", "drop"]
RowsOf = Literal["pairs", "unpaired", "both"]
"""Rows of a preference dataset: pairs of answers, single answers with a verdict."""
Schedule = Literal["cosine", "wsd", "linear", "constant"]
OptimizerName = Literal["adamw", "adamw_8bit", "muon"]
ActivationCheckpointing = Literal["none", "selective", "full"]

MOST_VALIDATION_TOKENS = 50_000
"""Most tokens of one validation during training; the operation `evaluate` uses all rows."""
SAME_RESULTS = frozenset(
    {
        "mesh", "dry_run", "validation_tokens", "activation_checkpointing", "offload_activations", "checkpoint_every",
        "checkpoint_seconds", "keep_checkpoints", "dataset",
}
)  # fmt: skip
"""Training settings that change where and how a step is computed or saved, but not its result. `dataset` names an input, which
counts by its content."""


class TrainingSettings(Settings):
    """Keys of every training stage. The preset fills missing values."""

    preset: Preset = Field("balanced", description="Fills every key that is left out")
    steps: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="Optimizer steps. Where it is given, `epochs` is not used. Left out: by preset or `epochs`",
    )
    epochs: float | None = Field(None, gt=0, le=100_000, description="Passes over the training rows. Left out: by preset")
    learning_rate: float | None = Field(None, gt=0, le=1, description="Peak learning rate. Left out: by preset")
    schedule: Schedule = Field(
        "cosine",
        description="Learning rate after the warm-up. wsd: constant, then a decay at the end, by 1 - the root of its share",
    )
    warmup_share: float | None = Field(
        None, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0. Left out: 0.03"
    )
    final_learning_rate_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Learning rate of the last step as a share of `learning_rate`, for cosine, wsd and linear. Left out: 0.1",
    )
    decay_share: float | None = Field(
        None, gt=0, le=1, description="wsd: share of the steps, at the end, in which the learning rate falls. Left out: 0.2"
    )
    tokens_per_step: int | None = Field(
        None, ge=64, le=2**32, description="Tokens of one optimizer step, over all processes. Left out: by preset"
    )
    least_tokens_per_step: int | None = Field(
        None,
        ge=64,
        le=2**32,
        description="Down to so many tokens, steps of small data are smaller than `tokens_per_step`, so that there are enough "
        "of them. Left out: 2,048, or `tokens_per_step` where that is given",
    )
    most_epochs: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Up to so many passes are made over small data, so that there are enough steps. Left out: by stage, or "
        "`epochs` where that is given",
    )
    max_length: int | None = Field(
        None, ge=16, le=2**24, description="Tokens of a packed row, and of the longest document. Left out: by preset"
    )
    micro_batch_tokens: int | None = Field(
        None,
        ge=16,
        le=2**32,
        description="Tokens in one forward pass, unless a single document has more. Left out: 4,096, or "
        "`max_length` where that is more",
    )
    overflow: Overflow = Field(
        "truncate",
        description="What happens to a document longer than `max_length`: it is cut, becomes several documents, "
        "or is left out. The metrics count each case",
    )
    dry_run: bool = Field(
        True, description="Run the heaviest micro-batch once before the first step, so that missing memory shows at once"
    )
    validation_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_VALIDATION_TOKENS,
        description="Tokens of one validation, of which there are four. Left out: as "
        "many and as often as a tenth of the trained tokens allows",
    )
    optimizer: OptimizerName = Field(
        "adamw", description="muon: Muon for the matrices of the blocks, AdamW for the rest. adamw_8bit needs bitsandbytes"
    )
    qk_clip: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Largest attention logit: after a step, query and key weights of heads above it are scaled down "
        "(QK-Clip; Kimi K2 uses 100). Left out: no bound",
    )
    beta1: float | None = Field(None, ge=0, lt=1, description="AdamW: decay of the mean of gradients. Left out: 0.9")
    beta2: float | None = Field(None, ge=0, lt=1, description="AdamW: decay of the mean of squared gradients. Left out: 0.95")
    epsilon: float | None = Field(
        None, gt=0, le=1, description="AdamW: added to the root of the mean of squared gradients. Left out: 1e-8"
    )
    adamw_rate_share: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Muon: learning rate of the parameters that AdamW trains (embeddings, head, norms, "
        "biases), as a share of `learning_rate`. Left out: 1; EAGLE-3 0.1",
    )
    weight_decay: float | None = Field(
        None, ge=0, le=1000, description="Decoupled weight decay; norms, biases and embeddings do not decay. Left out: 0.01"
    )
    gradient_clip: float | None = Field(None, gt=0, description="Largest norm of the gradient. Left out: 1.0")
    checkpoint_every: int | None = Field(None, ge=1, le=10**9, description="Optimizer steps between checkpoints. Left out: 50")
    checkpoint_seconds: float = Field(600.0, gt=0, description="Seconds after which a checkpoint is written in any case")
    on_bad_step: Literal["stop", "skip"] = Field(
        "stop", description="What to do when loss or gradient is not finite. A skipped step changes no weight and is counted"
    )
    on_spike: Literal["ignore", "warn", "skip", "stop"] = Field(
        "warn", description="What to do when loss or gradient norm is far above the last 100 steps"
    )
    keep_checkpoints: int = Field(2, ge=1, le=100_000, description="Number of newest checkpoints to keep")
    precision: Precision = Field(
        "auto",
        description="Precision of matrix products; master weights are float32. auto: bfloat16 where the machine is "
        "faster with it, else float32; the metrics say which",
    )
    activation_checkpointing: ActivationCheckpointing = Field(
        "none",
        description="What the blocks keep for the backward pass: everything, the results of matrix products, or only "
        "their inputs",
    )
    offload_activations: bool = Field(False, description="Keep the inputs of blocks in host memory (CUDA only)")
    deterministic: bool = Field(
        False,
        description="CUDA: use deterministic kernels only, so that a repeated or continued run ends with the same "
        "weights, bit for bit; slower. A CPU always does",
    )
    seed: Seed = Field(0, description="Seed of row order, initialisation and dropout")
    mesh: MeshSettings = Field(
        default_factory=MeshSettings, description="Processes that the stage trains on. Left out: one process"
    )

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 1.0, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 2.0, "learning_rate": 2e-5, "tokens_per_step": 65_536, "max_length": 4_096},
        "thorough": {"epochs": 4.0, "learning_rate": 1e-5, "tokens_per_step": 131_072, "max_length": 8_192},
    }
    COMMON: ClassVar[dict[str, Any]] = {
        "warmup_share": 0.03,
        "final_learning_rate_share": 0.1,
        "decay_share": 0.2,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-8,
        "adamw_rate_share": 1.0,
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "checkpoint_every": 50,
        "least_tokens_per_step": 2_048,
        "most_epochs": 10.0,
    }
    LEAST_STEPS: ClassVar[int] = 50
    """Steps that small data is trained for: as many as common trainers make of some hundred rows (batches of 8, 3 epochs)."""
    FEW_STEPS: ClassVar[int] = 20
    """Below so many steps a training changes next to nothing."""

    STAY_OPEN: ClassVar[dict[str, str]] = {
        "steps": "epochs say how long",
        "epochs": "steps say how long",
        "micro_batch_tokens": "chosen by the longest row",
        "validation_tokens": "chosen by the length of the run",
        "qk_clip": "attention logits have no bound",
    }
    """Fields that may be None in resolved settings."""

    @model_validator(mode="after")
    def _shares_add_up(self):
        shares = self.resolved()
        warmup, decay = filled(shares.warmup_share), filled(shares.decay_share)
        if self.schedule == "wsd" and warmup + decay > 1:
            raise ValueError(
                f"warmup_share {warmup} and decay_share {decay} are more than the whole run; their sum must be at most 1"
            )
        return self

    @model_validator(mode="after")
    def _clips_whole_heads(self):
        if self.qk_clip is not None and max(self.mesh.tp, self.mesh.cp) > 1:
            raise ValueError("qk_clip needs all heads on every process: set tp and cp of the mesh to 1, or leave qk_clip out")
        return self

    @property
    def prompts_a_step(self) -> int | None:
        """Prompts that a step asks; None where steps are made of tokens."""
        return None

    def steps_over(self, rows: int, rows_per_step: int) -> int:
        """Optimizer steps of resolved settings over so many rows."""
        passes = self.passes(rows, rows_per_step)
        return self.steps if self.steps is not None else max(1, math.ceil(passes * rows / rows_per_step))

    def passes(self, total: float, per_step: float) -> float:
        """Passes over `total` tokens or rows: `epochs`, or up to `most_epochs` where these are fewer than LEAST_STEPS steps."""
        return max(self.epochs or 0, min(self.most_epochs or 0, self.LEAST_STEPS * per_step / max(1, total)))

    def fitted(self, tokens: int, longest: int = 1) -> Self:
        """Resolved settings with the step and the epochs for so many training tokens. A step holds at most one pass.
        longest: tokens of the longest document."""
        floor = max(filled(self.least_tokens_per_step), longest, (self.epochs or 1) * tokens / self.LEAST_STEPS)
        per_step = max(64, round(min(filled(self.tokens_per_step), floor, max(tokens, longest))))
        epochs = self.epochs if self.steps is not None else self.passes(tokens, per_step)
        return self.model_copy(update={"tokens_per_step": per_step, "epochs": epochs})

    def more_steps(self, steps: int, section: str) -> str | None:
        """What to set in the recipe's section where `steps` steps are too few; None where they are enough."""
        if steps >= self.FEW_STEPS:
            return None
        if self.steps is not None:
            return f"set {section}.steps to {self.LEAST_STEPS} or more, or leave it out"
        passes = max(filled(self.epochs), filled(self.most_epochs))
        per_step = min(filled(self.tokens_per_step), filled(self.least_tokens_per_step))
        epochs = f"set {section}.epochs to {math.ceil(passes * self.LEAST_STEPS / max(1, steps))}"
        smaller = per_step * steps // self.LEAST_STEPS
        return epochs if smaller < 512 or self.prompts_a_step else f"{epochs}, or {section}.tokens_per_step to {smaller}"

    def trainer_state(self, step: int, rows: int, rows_per_step: int) -> dict[str, float]:
        """What TRL's trainer_state says after `step` steps."""
        return {"global_step": step, "max_steps": self.steps_over(rows, rows_per_step), "epoch": step * rows_per_step / rows}

    def resolved(self) -> Self:
        """The settings with every missing value filled from the preset, except for fields in STAY_OPEN."""
        values = {**self.COMMON, **self.PRESETS[self.preset]}
        if self.steps is not None:
            values.pop("epochs", None)
        elif self.epochs is not None:
            values.pop("steps", None)
            values["most_epochs"] = self.epochs
        if self.tokens_per_step is not None:
            values["least_tokens_per_step"] = self.tokens_per_step
        return self.model_copy(update={name: value for name, value in values.items() if getattr(self, name) is None})


AnyDocument = TypeVar("AnyDocument")

SHARE = 0.1
"""Tokens of all validations of a run, as a share of the tokens that it trains on."""
TIMES = 4
"""Most validations of a run."""
ENOUGH_TOKENS = 8_000
"""Tokens of one validation before a run gets a second one: a later and more exact loss says more than several noisy ones."""


@dataclass(frozen=True)
class ValidationPlan:
    """When and on how much to validate."""

    tokens: int
    """Most tokens of one validation, over all processes."""
    every: int
    """Optimizer steps between validations; the last step is always followed by one."""


def plan_validation(steps: int, settings: TrainingSettings) -> ValidationPlan:
    """The plan of a run of `steps` steps. settings: resolved; `validation_tokens`, if given, is used four times."""
    if settings.validation_tokens is not None:
        return ValidationPlan(settings.validation_tokens, max(1, math.ceil(steps / TIMES)))
    budget = int(SHARE * steps * filled(settings.tokens_per_step))
    times = max(1, min(TIMES, budget // ENOUGH_TOKENS))
    return ValidationPlan(max(1, min(MOST_VALIDATION_TOKENS, budget // times)), max(1, math.ceil(steps / times)))


def first_documents(
    documents: Sequence[AnyDocument], tokens: int, length: Callable[[Any], int] = len, least: int = 1
) -> list[AnyDocument]:
    """The first documents up to `tokens` tokens; at least `least`, if there are as many. length: tokens of a document."""
    chosen: list[AnyDocument] = []
    held = 0
    for document in documents:
        if len(chosen) >= least and held + length(document) > tokens:
            break
        chosen.append(document)
        held += length(document)
    return chosen
