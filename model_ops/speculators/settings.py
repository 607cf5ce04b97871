"""Recipe keys that every drafter architecture takes, to which each `architecture.py` adds its own. Importing this module
imports no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from model_ops.completions import GenerateSettings
from model_ops.files import LocalPath
from model_ops.parallel import MeshSettings
from model_ops.training import OptimizerName, TrainingSettings


def _no_model_parallelism(mesh: MeshSettings) -> MeshSettings:
    """Refuses mesh axes that split a model's layers: drafters are small, and every process has rows of its own."""
    for axis in ("cp", "ep", "tp"):
        if getattr(mesh, axis) > 1:
            raise ValueError(
                f"{axis} is {getattr(mesh, axis)}, but drafters support only dp_shard and dp_replicate: set {axis} to 1"
            )
    return mesh


class SpeculatorSettings(TrainingSettings):
    """A draft model for the target that will be served, trained on that target's own answers."""

    enabled: bool = Field(True, description="false: no drafter is made, and the model is served without speculative decoding")
    architecture: str = Field(description="Kind of drafter")
    _mesh_without_model_parallelism = field_validator("mesh")(_no_model_parallelism)
    optimizer: OptimizerName = Field(
        "muon", description="muon: Muon for the matrices of the layers, AdamW for the rest. adamw_8bit needs bitsandbytes"
    )
    loss: Literal["kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy"] = Field(
        "lk_lambda",
        description="kl, lk_lambda, lk_alpha and tv compare with the distribution of the target, cross_entropy "
        "with the tokens it generated",
    )
    eta: float | None = Field(None, ge=0, le=1000, description="lk_lambda: KL weighs exp(-eta alpha), TV the rest. Left out: 3")
    lambda_of: Literal["step", "position"] = Field(
        "step", description="lk_lambda: alpha is the running mean of each draft step, or each position's own"
    )
    num_speculative_tokens: int = Field(3, ge=1, le=16, description="Tokens drafted per verification (K)")
    ttt_steps: int | None = Field(
        None, ge=1, le=64, description="Steps of the training-time test. Left out: by preset, or one for each draft"
    )
    step_decay: float = Field(
        0.8, gt=0, le=1, description="Step k of the training-time test weighs step_decay ** k in the loss"
    )
    step_weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        None,
        min_length=1,
        description="Weight of each step of the training-time test, instead of `step_decay`. Left out: powers of `step_decay`",
    )
    draft_vocab_size: int | None = Field(
        None, ge=16, le=2**24, description="Tokens of the draft vocabulary. Left out: the fewest that reach `draft_coverage`"
    )
    draft_coverage: float = Field(
        0.998, gt=0, le=1, description="Share of the answer tokens that the draft vocabulary must hold"
    )
    hidden_states: Literal["auto", "online", "cache"] = Field(
        "auto",
        description="Hidden states of the target. online: computed with each batch. cache: computed once into a disk "
        "cache that is deleted after use. auto: the cache where answers are read more than once and it fits `cache_gib`",
    )
    cache_gib: float | None = Field(
        None, gt=0, le=1e6, description="Most GiB of disk for the cache of hidden states. Left out: 0.8 of the free disk"
    )
    continue_from: Annotated[str, LocalPath("folder", "the directory of a drafter, or `last`", ("last",))] | None = Field(
        None,
        min_length=1,
        description="Previous drafter of the same target to start from: `last` (the lake's newest), or a "
        "directory. Left out: a new drafter",
    )
    previous_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the previous drafter in the first weights, the rest is a new drafter's; needs "
        "`continue_from`. Left out: 0.25, 0.5, 0.75 or 1, chosen by acceptance",
    )
    overflow: Literal["truncate"] = Field("truncate", description="An answer longer than `max_length` is cut, and counted")
    answers: GenerateSettings = Field(
        default_factory=GenerateSettings, description="The target's answers that the drafter learns from"
    )

    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TrainingSettings.STAY_OPEN,
        "draft_vocab_size": "the smallest that covers draft_coverage",
        "cache_gib": "0.8 of the free disk",
        "continue_from": "a new drafter",
        "previous_share": "by what is accepted of the new answers",
        "step_weights": "powers of step_decay",
    }
    COMMON: ClassVar[dict[str, Any]] = {**TrainingSettings.COMMON, "eta": 3.0}
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 2.0, "ttt_steps": 3, "learning_rate": 1e-3, "tokens_per_step": 4_096, "max_length": 2_048},
        "balanced": {"epochs": 5.0, "ttt_steps": 4, "learning_rate": 4e-4, "tokens_per_step": 32_768, "max_length": 4_096},
        "thorough": {"epochs": 10.0, "ttt_steps": 7, "learning_rate": 2e-4, "tokens_per_step": 65_536, "max_length": 8_192},
    }

    MUON_RATES: ClassVar[dict[str, float]] = {"quick": 1e-2, "balanced": 5e-3, "thorough": 3e-3}
    """Learning rate by preset with Muon; PRESETS has those of AdamW. Higher ones learn faster at first and less in the end."""

    PART_OF_THE_VOCABULARY: ClassVar[bool] = False
    """Whether servers load such a drafter with a draft vocabulary smaller than the target's."""

    @property
    def positions_per_answer(self) -> int | None:
        """Positions of each answer at which a training step drafts; None: all."""
        return None

    @model_validator(mode="after")
    def _keys_agree(self):
        for sentence in self.contradictions():
            raise ValueError(sentence)
        return self

    def contradictions(self) -> Iterator[str]:
        """Sentences about keys that contradict each other, the most telling one first."""
        steps, weights = self.resolved().ttt_steps, self.step_weights
        if weights is not None and (len(weights) != steps or min(weights) < 0 or max(weights) == 0):
            yield (
                f"step_weights are {len(weights)} numbers and ttt_steps is {steps}; give one for each step, none "
                "below 0 and not all 0"
            )
        if self.draft_vocab_size is not None and not self.PART_OF_THE_VOCABULARY:
            yield (
                f"draft_vocab_size is set, but servers take {self.architecture} with the target's whole "
                "vocabulary only: leave it out"
            )

    def derived(self) -> dict[str, Any]:
        """Values, for keys that are left out, which follow from other keys."""
        rates = self.MUON_RATES if self.optimizer == "muon" else {}
        return {"learning_rate": rates[self.preset]} if rates else {}

    def resolved(self):
        """The same settings with every key filled: from other keys, else from the preset."""
        opened = {name: value for name, value in self.derived().items() if getattr(self, name) is None}
        return super(SpeculatorSettings, self.model_copy(update=opened)).resolved()

    @property
    def step_ratio(self) -> float:
        """Ratio of the loss weights of two neighbouring draft steps."""
        return self.step_decay

    def weights_of_steps(self, steps: int) -> list[float]:
        """Loss weight of each draft step."""
        return list(self.step_weights or (self.step_ratio**step for step in range(steps)))


class TrainedDrafterSettings(SpeculatorSettings):
    """A drafter that begins as a trained model: AdamW, at a tenth of a new drafter's learning rates."""

    optimizer: OptimizerName = Field("adamw", description=TrainingSettings.model_fields["optimizer"].description)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        name: {**SpeculatorSettings.PRESETS[name], "learning_rate": rate}
        for name, rate in {"quick": 1e-4, "balanced": 4e-5, "thorough": 2e-5}.items()
    }
    MUON_RATES: ClassVar[dict[str, float]] = {}
