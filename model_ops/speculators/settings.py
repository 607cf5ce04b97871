"""What a recipe can ask of a drafter, and what each architecture fills in. Importing this module imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from model_ops.answering.settings import GenerateSettings
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.training.settings import TrainingSettings

ETA = {"medusa": 10.0}
"""LK-lambda's eta by architecture, where it is not 3 (arXiv 2602.23881)."""


def copies_and_shards(mesh: MeshSettings) -> MeshSettings:
    """Refuses axes that cut a model's inside, for drafters: they are small, and every process has rows of its own."""
    for axis in ("cp", "ep", "tp"):
        if getattr(mesh, axis) > 1:
            raise ValueError(f"{axis} is {getattr(mesh, axis)}, but a drafter is a layer or a few and is trained on more "
                             f"processes by dp_shard and dp_replicate alone: set {axis} to 1")
    return mesh


class SpeculatorSettings(TrainingSettings):
    """A draft model for the target that will be served, trained on that target's own answers."""

    enabled: bool = Field(True, description="false: no drafter is made, and the model is served without speculative decoding")
    architecture: Literal["eagle3", "eagle3.1", "p_eagle", "dflash", "medusa", "mlp_speculator", "mtp",
                          "draft_model"] = Field("eagle3", description="Kind of drafter")
    _copies_and_shards = field_validator("mesh")(copies_and_shards)
    loss: Literal["kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy"] = Field(
        "lk_lambda", description="kl, lk_lambda, lk_alpha and tv compare with the distribution of the target, cross_entropy "
        "with the tokens it generated")
    eta: float | None = Field(
        None, ge=0, le=1000, description="lk_lambda: KL weighs exp(-eta alpha), TV the rest. Left out: 3, medusa 10")
    lambda_of: Literal["step", "position"] = Field(
        "step", description="lk_lambda: alpha is the running mean of each draft step, or that of each position")
    num_speculative_tokens: int = Field(3, ge=1, le=16, description="Tokens drafted per verification (K)")
    ttt_steps: int | None = Field(
        None, ge=1, le=64, description="Steps of the training-time test. Left out: by preset, or one for each draft")
    step_decay: float = Field(
        0.8, gt=0, le=1, description="Step k of the training-time test weighs step_decay ** k in the loss")
    step_weights: list[Annotated[float, Field(ge=0)]] | None = Field(
        None, min_length=1, description="Weight of each step of the training-time test, instead of `step_decay`. "
        "Left out: powers of `step_decay`")
    draft_vocab_size: int | None = Field(
        None, ge=16, le=2**24, description="Tokens of the draft vocabulary. Left out: the fewest that reach `draft_coverage`")
    draft_coverage: float = Field(
        0.998, gt=0, le=1, description="Share of the answer tokens that the draft vocabulary must hold")
    num_layers: int | None = Field(
        None, ge=1, le=16, description="eagle3, eagle3.1, p_eagle, dflash: decoder layers of the drafter. Left out: 1; "
        "p_eagle 4; dflash 1, 3 or 5 by preset")
    cod_ratio: float | None = Field(
        None, gt=0, le=1, description="p_eagle: training keeps cod_ratio ** k of the positions of draft k. Left out: 0.7")
    cod_floor: float | None = Field(
        None, gt=0, le=1, description="p_eagle: smallest share of positions that is kept. Left out: 0.2")
    mask_token_id: int | None = Field(
        None, ge=0, description="p_eagle, dflash: token id that stands for a token not yet drafted. p_eagle trains its "
        "embedding, dflash keeps it. Left out: p_eagle takes an id that answers and prompts do not hold, dflash the padding "
        "token or the last of the vocabulary")
    residual_layers: int | None = Field(None, ge=1, le=64, description="medusa: residual layers of each head. Left out: 1")
    shared_head: bool | None = Field(
        None, description="medusa: one output matrix for all heads. false: one for each head, as in the paper. Left out: true")
    inner_dim: int | None = Field(
        None, ge=1, le=2**20, description="mlp_speculator: width of its state. Left out: that of the target")
    tie_weights: bool | None = Field(
        None, description="mlp_speculator: its steps share their weights. Left out: true where there are several steps")
    scale_input: bool | None = Field(
        None, description="mlp_speculator: the hidden state of the target is normalised first. Left out: true")
    block_size: int | None = Field(
        None, ge=2, le=64, description="dflash: tokens of a block, the last verified one and the drafts. Left out: "
        "num_speculative_tokens + 1")
    captured_layers: int | None = Field(
        None, ge=1, le=1_024, description="dflash: number of the target's layers whose states it reads. Left out: 5, or as "
        "many as a shallow target has")
    gamma: float | None = Field(
        None, gt=0, description="dflash: draft k weighs exp(-(k - 1) / gamma), k = 1, 2, ... Left out: 4")
    anchors: int | None = Field(
        None, ge=1, description="dflash: positions of an answer at which a training step drafts, chosen anew each time. Left "
        "out: 64, 256 or 512 by preset")
    draft_model: str | None = Field(
        None, min_length=1, description="draft_model: small language model to begin from, with the target's tokenizer: "
        "`student` (the recipe's), or a directory. Left out: student")
    mtp_layer: str | None = Field(
        None, min_length=1, description="mtp: model whose multi-token-prediction layer is trained further: `base` (the "
        "recipe's base model), or a directory. Left out: base")
    hidden_states: Literal["auto", "online", "cache"] = Field(
        "auto", description="Hidden states of the target. online: computed with each batch. cache: computed once into a disk "
        "cache that is deleted after use. auto: the cache where answers are read more than once and it fits `cache_gib`")
    cache_gib: float | None = Field(
        None, gt=0, le=1e6, description="Most GiB of disk for the cache of hidden states. Left out: 0.8 of the free disk")
    continue_from: str | None = Field(
        None, min_length=1, description="Previous drafter of the same target to start from: `last` (the lake's newest), or a "
        "directory. Left out: a new drafter")
    previous_share: float | None = Field(
        None, gt=0, le=1, description="Share of the previous drafter in the first weights, the rest is a new drafter's; needs "
        "`continue_from`. Left out: 0.25, 0.5, 0.75 or 1, chosen by acceptance")
    overflow: Literal["truncate"] = Field("truncate", description="An answer longer than `max_length` is cut, and counted")
    answers: GenerateSettings = Field(
        default_factory=GenerateSettings, description="The target's answers that the drafter learns from")

    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TrainingSettings.STAY_OPEN, "draft_vocab_size": "the smallest that covers draft_coverage",
        "cache_gib": "0.8 of the free disk", "continue_from": "a new drafter",
        "previous_share": "by what is accepted of the new answers",
        "step_weights": "powers of step_decay",
        "cod_ratio": "of p_eagle alone", "cod_floor": "of p_eagle alone",
        "num_layers": "of eagle3, eagle3.1, p_eagle and dflash", "mask_token_id": "by the drafter's vocabulary",
        "residual_layers": "of medusa alone", "shared_head": "of medusa alone", "inner_dim": "the target's width",
        "tie_weights": "of mlp_speculator alone", "scale_input": "of mlp_speculator alone",
        "block_size": "of dflash alone", "gamma": "of dflash alone", "anchors": "of dflash alone",
        "captured_layers": "5, or as many as a shallow target has",
        "draft_model": "of draft_model alone", "mtp_layer": "of mtp alone",
    }

    OWN_FIELDS: ClassVar[dict[str, dict[str, Any]]] = {
        "eagle3": {"num_layers": 1},
        "eagle3.1": {"num_layers": 1},
        "p_eagle": {"num_layers": 4, "cod_ratio": 0.7, "cod_floor": 0.2, "mask_token_id": None},
        "medusa": {"residual_layers": 1, "shared_head": True},
        "mlp_speculator": {"inner_dim": None, "tie_weights": True, "scale_input": True},
        "dflash": {"block_size": None, "num_layers": None, "captured_layers": None, "gamma": 4.0, "anchors": None,
                   "mask_token_id": None},
        "draft_model": {"draft_model": "student"},
        "mtp": {"mtp_layer": "base"},
    }
    """Fields that not every architecture has, and what fills them where they are open."""

    STEP_FOR_EACH_DRAFT: ClassVar[tuple[str, ...]] = ("p_eagle", "dflash", "medusa", "mlp_speculator")
    """Trained for num_speculative_tokens drafts, or a block's; the others repeat their last step."""

    WHOLE_VOCABULARY: ClassVar[tuple[str, ...]] = ("dflash", "medusa", "mlp_speculator", "mtp", "draft_model")
    """Of which servers take no draft vocabulary."""

    OWN_PRESETS: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "dflash": {"quick": {"num_layers": 1, "anchors": 64}, "balanced": {"num_layers": 3, "anchors": 256},
                   "thorough": {"num_layers": 5, "anchors": 512}},
        "draft_model": {"quick": {"learning_rate": 1e-4}, "balanced": {"learning_rate": 4e-5},
                        "thorough": {"learning_rate": 2e-5}},
        "mtp": {"quick": {"learning_rate": 1e-4}, "balanced": {"learning_rate": 4e-5}, "thorough": {"learning_rate": 2e-5}},
    }
    """What the preset fills in its own way: those of them, and a learning rate for what was trained before."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"epochs": 2.0, "ttt_steps": 3, "learning_rate": 1e-3, "tokens_per_step": 4_096, "max_length": 2_048},
        "balanced": {"epochs": 5.0, "ttt_steps": 4, "learning_rate": 4e-4, "tokens_per_step": 32_768,
                     "max_length": 4_096},
        "thorough": {"epochs": 10.0, "ttt_steps": 7, "learning_rate": 2e-4, "tokens_per_step": 65_536,
                     "max_length": 8_192},
    }

    @model_validator(mode="after")
    def _a_weight_for_every_step(self):
        steps, weights = self.resolved().ttt_steps, self.step_weights
        if weights is not None and (len(weights) != steps or min(weights) < 0 or max(weights) == 0):
            raise ValueError(f"step_weights are {len(weights)} numbers and ttt_steps is {steps}; give one for each step, none "
                             "below 0 and not all 0")
        return self

    @model_validator(mode="after")
    def _fields_of_the_architecture(self):
        having: dict[str, list[str]] = {}
        for architecture, fields in self.OWN_FIELDS.items():
            for name in fields:
                having.setdefault(name, []).append(architecture)
        for name, architectures in having.items():
            if self.architecture not in architectures and getattr(self, name) is not None:
                has_it = f"only {architectures[0]} has it" if len(architectures) == 1 else f"{', '.join(architectures)} have it"
                raise ValueError(f"{name} is set, but architecture is {self.architecture} and {has_it}: leave it out")
        if self.block_size is not None and self.block_size <= self.num_speculative_tokens:
            raise ValueError(f"a block of block_size {self.block_size} holds {self.block_size - 1} drafts and "
                             f"num_speculative_tokens is {self.num_speculative_tokens}: set block_size to at least one more")
        if self.architecture in self.STEP_FOR_EACH_DRAFT and self.ttt_steps not in (None, self._own_steps()):
            of_what = "a block's drafts" if self.architecture == "dflash" else "num_speculative_tokens"
            raise ValueError(f"ttt_steps is {self.ttt_steps}, but {self.architecture} has a step for each of {of_what} "
                             f"({self._own_steps()}): leave ttt_steps out")
        if self.architecture == "dflash" and self.step_decay != type(self).model_fields["step_decay"].default:
            raise ValueError("step_decay is set, but dflash weighs its drafts by gamma: set gamma, or step_weights")
        if self.architecture == "draft_model" and (self.mesh.dp_shard == -1 or self.mesh.resolved().processes > 1):
            raise ValueError("a draft_model is trained in one process: leave mesh out")
        if self.architecture == "draft_model" and self.ttt_steps not in (None, 1):
            raise ValueError(f"ttt_steps is {self.ttt_steps}, but a draft_model reads tokens alone: a later draft is trained "
                             "as the first one of a longer text. Leave ttt_steps out")
        if self.draft_vocab_size is not None and not self.drafts_part_of_the_vocabulary:
            raise ValueError(f"draft_vocab_size is set, but servers take {self.architecture} with the target's whole "
                             "vocabulary only: leave it out")
        if self.tie_weights and self.num_speculative_tokens == 1:
            raise ValueError("tie_weights shares weights between steps, and num_speculative_tokens is 1: leave it out")
        return self

    @property
    def drafts_part_of_the_vocabulary(self) -> bool:
        """Whether the architecture, in the form that servers load, can do without some of the target's tokens."""
        return self.architecture not in self.WHOLE_VOCABULARY

    def resolved(self):
        """Open values from the preset, and from the architecture where it has its own."""
        own = dict(self.OWN_FIELDS.get(self.architecture, {}))
        own |= self.OWN_PRESETS.get(self.architecture, {}).get(self.preset, {})
        if self.architecture in self.STEP_FOR_EACH_DRAFT:
            own["ttt_steps"] = self._own_steps()
        if "block_size" in own:
            own["block_size"] = self.num_speculative_tokens + 1
        if self.architecture == "draft_model":
            own["ttt_steps"] = 1
        if "tie_weights" in own:
            own["tie_weights"] = self.num_speculative_tokens > 1
        own["eta"] = ETA.get(self.architecture, 3.0)
        opened = {name: value for name, value in own.items() if getattr(self, name) is None}
        return super(SpeculatorSettings, self.model_copy(update=opened)).resolved()

    def weights_of_steps(self, steps: int) -> list[float]:
        """What the loss of each draft step is multiplied by."""
        decay = self.step_decay if self.gamma is None else math.exp(-1 / self.gamma)
        return list(self.step_weights or (decay**step for step in range(steps)))

    def _own_steps(self) -> int:
        """Draft steps in training of an architecture that has no training-time test: what it drafts at once."""
        return self.num_speculative_tokens if self.block_size is None else self.block_size - 1

    def shares_of_steps(self, steps: int) -> list[float]:
        """Which share of its positions each draft step is trained at. settings are resolved."""
        if self.architecture != "p_eagle":
            return [1.0] * steps
        return [1.0, *(max(self.cod_ratio**step, self.cod_floor) for step in range(1, steps))]
