"""Settings of a training run, and how presets fill what is left open. Importing this module imports no torch."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Preset = Literal["quick", "balanced", "thorough"]
Overflow = Literal["truncate", "split", "drop"]
Schedule = Literal["cosine", "wsd", "linear", "multi_step", "constant"]
DecayShape = Literal["linear", "one_minus_sqrt", "cosine"]
OptimizerName = Literal["adamw", "adamw_8bit", "muon"]
ActivationCheckpointing = Literal["none", "selective", "full"]


SAME_RESULTS = frozenset({"mesh", "dry_run", "activation_checkpointing", "offload_activations", "checkpoint_every",
                          "checkpoint_seconds", "keep_checkpoints"})
"""Training settings that say where and how a step is computed or kept, not what comes of it."""


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused, values are checked where they enter."""

    model_config = ConfigDict(extra="forbid")


MESH_AXES = ("dp_replicate", "dp_shard", "cp", "ep", "tp")
"""The axes of a mesh, outermost first: processes that differ only in the last one are neighbours."""


class MeshSettings(Settings):
    """Over which processes a stage is trained; one process where nothing is said.

    The product of the five axes is the number of processes. dp_shard takes what `processes` leaves to it.
    """

    processes: int | None = Field(None, ge=1, description="processes of the run; open: the product of the axes")
    dp_replicate: int = Field(1, ge=1, description="groups of processes that each hold the whole model (HSDP)")
    dp_shard: int | None = Field(None, ge=-1, description="processes that share one copy of the model, each with rows of its "
                                 "own (FSDP); open: what the other axes leave of processes; -1: the same, and processes, "
                                 "where open, is the number of accelerators of the machine")
    cp: int = Field(1, ge=1, description="processes that cut a row's tokens among them (Ulysses)")
    tp: int = Field(1, ge=1, description="processes that cut the matrices among them")
    ep: int = Field(1, ge=1, description="processes that share the experts among them, each with rows of its own")
    restarts: int = Field(0, ge=0, description="how often all processes are started again, from the newest checkpoint, once "
                          "one was killed; an error of the run itself ends it")
    rules: list[tuple[str, str | None]] = Field(
        default_factory=list, description="[logical axis, mesh axis or null] tried before the default rules")

    @field_validator("dp_shard")
    @classmethod
    def _no_empty_axis(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("dp_shard is a number of processes, or -1 for what the other axes leave")
        return value

    @field_validator("rules")
    @classmethod
    def _known_rules(cls, value: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
        known = {"vocab": ("tp",), "heads": ("tp",), "kv_heads": ("tp",), "mlp": ("tp",), "expert": ("ep", "tp")}
        for logical, axis in value:
            if logical not in known or axis not in (None, *known[logical]):
                choices = "; ".join(f"{name} to {' or '.join(axes)}" for name, axes in known.items())
                raise ValueError(f"no rule maps {logical} to {axis}; rules are {choices}, or any of them to null")
        return value

    @model_validator(mode="after")
    def _divides(self):
        if self.processes is not None:
            self.resolved()
        return self

    def resolved(self, accelerators: int = 0) -> MeshSettings:
        """The same mesh with `processes` and `dp_shard` as numbers; `accelerators` are those of the machine.

        Raises ValueError, in one sentence, for a mesh whose axes do not divide its processes.
        """
        others = self.dp_replicate * self.cp * self.tp * self.ep
        wanted = self.processes
        if wanted is None and self.dp_shard == -1:
            if accelerators == 0:
                raise ValueError("dp_shard is -1 and this machine has no accelerator to count: give processes as well")
            wanted = accelerators
        named = " x ".join(f"{axis} {getattr(self, axis)}" for axis in MESH_AXES
                           if axis != "dp_shard" and getattr(self, axis) > 1) or "the other axes"
        if self.dp_shard in (None, -1):
            share, left = divmod(wanted or others, others)
            if left or share == 0:
                raise ValueError(f"the mesh does not divide: {wanted} processes are no multiple of {others} ({named})")
        else:
            share = self.dp_shard
            if wanted is not None and share * others != wanted:
                raise ValueError(f"the mesh does not divide: dp_shard {share} times {others} ({named}) is {share * others}, "
                                 f"not the {wanted} processes asked for")
        return self.model_copy(update={"processes": share * others, "dp_shard": share})

    def sizes(self) -> dict[str, int]:
        """Size of every axis, outermost first."""
        whole = self.resolved()
        return {axis: getattr(whole, axis) for axis in MESH_AXES}


class TrainingSettings(Settings):
    """What every training stage shares. Values left open (None) come from the preset."""

    preset: Preset = Field("balanced", description="fills every value left open below")
    steps: int | None = Field(None, ge=1, description="optimizer steps; where given, epochs is not used")
    epochs: float | None = Field(None, gt=0, description="passes over the training rows")
    learning_rate: float | None = Field(None, gt=0)
    schedule: Schedule = Field("cosine", description="the learning rate after the warm-up; wsd: flat, then a decay at the end; "
                               "multi_step: times milestone_factor at each milestone")
    warmup_share: float | None = Field(None, ge=0, lt=1, description="share of the steps spent warming up")
    final_learning_rate_share: float | None = Field(
        None, ge=0, le=1, description="share of learning_rate at the last step of cosine, wsd and linear")
    decay_share: float | None = Field(None, gt=0, le=1, description="wsd: share of the steps, at the end, that decay")
    decay_shape: DecayShape = Field("one_minus_sqrt", description="wsd: how the decay falls")
    milestones: list[float] | None = Field(None, min_length=1, description="multi_step: shares of the steps, ascending")
    milestone_factor: float | None = Field(None, gt=0, le=1, description="multi_step: what each milestone multiplies by")
    tokens_per_step: int | None = Field(None, ge=64, description="tokens in one optimizer step")
    max_length: int | None = Field(None, ge=16, description="tokens in a packed row, and of the longest document")
    micro_batch_tokens: int | None = Field(
        None, ge=16, description="tokens that go through the model at once, unless one document has more; open: 4,096, or a "
        "packed row of max_length")
    overflow: Overflow = Field("truncate", description="a row longer than max_length is cut, becomes several documents, or is "
                               "left out; all three are counted")
    dry_run: bool = Field(True, description="before the first step the heaviest micro-batch goes forward and backward and is "
                          "forgotten, so that memory fails at once")
    optimizer: OptimizerName = Field("adamw", description="muon: Muon for the matrices of the blocks, AdamW for the rest; "
                                     "adamw_8bit needs bitsandbytes")
    beta1: float | None = Field(None, ge=0, lt=1, description="AdamW: decay of the mean of gradients")
    beta2: float | None = Field(None, ge=0, lt=1, description="AdamW: decay of the mean of squared gradients")
    epsilon: float | None = Field(None, gt=0, description="AdamW: added to the root of the latter")
    momentum: float | None = Field(None, ge=0, lt=1, description="Muon: decay of the mean of gradients")
    weight_decay: float | None = Field(None, ge=0, description="of weights; norms, biases and embeddings do not decay")
    gradient_clip: float | None = Field(None, gt=0, description="largest norm of the gradient")
    checkpoint_every: int | None = Field(None, ge=1, description="optimizer steps between checkpoints")
    checkpoint_seconds: float = Field(600.0, gt=0, description="a checkpoint is also written when the last is this old")
    on_bad_step: Literal["stop", "skip"] = Field(
        "stop", description="where loss or gradient are no finite numbers; a skipped step changes nothing and is counted")
    on_spike: Literal["ignore", "warn", "skip", "stop"] = Field(
        "warn", description="where loss or gradient norm are far above those of the steps before")
    spike_deviations: float = Field(10.0, gt=0, description="how far is far: robust standard deviations above the median")
    spike_window: int = Field(100, ge=10, description="steps before that a spike is told by")
    keep_checkpoints: int = Field(2, ge=1, description="whole checkpoints that are kept, the newest ones")
    precision: Literal["bfloat16", "float32"] = Field("bfloat16", description="of products; master weights are float32")
    activation_checkpointing: ActivationCheckpointing = Field(
        "none", description="what blocks keep for the backward pass: everything, results of products, or only their inputs")
    offload_activations: bool = Field(False, description="kept inputs of blocks wait in host memory (CUDA)")
    seed: int = 0
    mesh: MeshSettings = Field(default_factory=MeshSettings, description="over which processes; one when left out")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 1.0, "learning_rate": 2e-5, "tokens_per_step": 8_192, "max_length": 2_048},
        "balanced": {"epochs": 2.0, "learning_rate": 2e-5, "tokens_per_step": 65_536, "max_length": 4_096},
        "thorough": {"epochs": 4.0, "learning_rate": 1e-5, "tokens_per_step": 131_072, "max_length": 8_192},
    }
    COMMON: ClassVar[dict[str, Any]] = {
        "warmup_share": 0.03,
        "final_learning_rate_share": 0.1,
        "decay_share": 0.2,
        "milestones": [0.8, 0.9],
        "milestone_factor": 0.316,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-8,
        "momentum": 0.95,
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "checkpoint_every": 50,
    }

    STAY_OPEN: ClassVar[dict[str, str]] = {
        "steps": "epochs say how long", "epochs": "steps say how long",
        "micro_batch_tokens": "chosen by the longest row",
    }
    """Fields that may still be None in resolved settings, and why."""

    @model_validator(mode="after")
    def _shares_add_up(self):
        filled = self.resolved()
        if self.schedule == "wsd" and filled.warmup_share + filled.decay_share > 1:
            raise ValueError(f"warmup_share {filled.warmup_share} and decay_share {filled.decay_share} are more than the whole "
                             "run; their sum must be at most 1")
        milestones = filled.milestones
        if self.schedule == "multi_step" and not (
                milestones == sorted(set(milestones)) and filled.warmup_share <= milestones[0] and milestones[-1] < 1):
            raise ValueError(f"milestones {milestones} must ascend from at least warmup_share ({filled.warmup_share}) to "
                             "below 1")
        return self

    def resolved(self):
        """The same settings with every open value filled from the preset, but for those in STAY_OPEN."""
        values = {**self.COMMON, **self.PRESETS[self.preset]}
        if self.steps is not None:
            values.pop("epochs", None)
        elif self.epochs is not None:
            values.pop("steps", None)
        return self.model_copy(update={name: value for name, value in values.items() if getattr(self, name) is None})


class LoraSettings(Settings):
    """Low-rank adapters beside frozen weights: W + (alpha / rank) B A, or alpha / sqrt(rank) with rslora."""

    rank: int = Field(16, ge=1, description="columns of B, rows of A")
    alpha: float = Field(32.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of what an adapter sees, while it is trained")
    targets: list[str] | None = Field(
        None, min_length=1, description="ends of layer names, such as q_proj; open: every linear layer, attention and MLP")
    rslora: bool = Field(False, description="scale by alpha / sqrt(rank) (arXiv 2312.03732)")
    merge: bool = Field(True, description="the output is the merged model; the adapter lies in adapter/ beside it")

    @property
    def scaling(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)
