"""Settings of operation `measure_lengths`: the limits on length of every later stage. Importing this file imports no torch."""

from pydantic import Field

from model_ops.jobs import Seed, Settings
from model_ops.training import Overflow


class TrainingLimit(Settings):
    """Limit of a stage that trains on conversations."""

    max_length: int = Field(ge=1, description="Tokens of the longest row")
    overflow: Overflow = Field("truncate", description="What happens to a longer row")


class DrafterLimit(Settings):
    """Limits of the drafter: the target answers prompts, and the drafter learns from prompt and answer together."""

    max_length: int = Field(ge=1, description="Tokens of prompt and answer together")
    max_new_tokens: int = Field(ge=1, description="Most tokens of one answer")
    prompts: int | None = Field(None, ge=1, description="Most turns to answer. Left out: all")
    seed: Seed = Field(0, description="Seed of the choice of turns")


class EvaluationLimit(Settings):
    """Limits of the evaluation."""

    max_length: int = Field(ge=1, description="Tokens of the longest held-out row or prompt")
    max_new_tokens: int = Field(ge=1, description="Most tokens of one measured answer")
    acceptance_is_gated: bool = Field(False, description="Whether a release needs a measured acceptance length")


class LengthSettings(Settings):
    """Limits on length by stage. A stage that the recipe switches off is not named."""

    training: dict[str, TrainingLimit] = Field(default_factory=dict, description="Stages that train, by recipe section")
    drafter: DrafterLimit | None = Field(None, description="The drafter's limits, if there is one")
    evaluation: EvaluationLimit = Field(description="The evaluation's limits")
