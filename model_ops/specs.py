"""What a worker can be asked to do: one pydantic model per operation, and the job that carries it.

A job is a JSON file: an operation, where its inputs lie, where its output goes, and its settings. The assets write
it, `python -m model_ops.worker JOB.json` carries it out. Importing this module imports no torch, so the Dagster
definitions and the recipe share these models.

Presets (`quick`, `balanced`, `thorough`) fill every hyperparameter that is left open; each of them can be set beside
the preset. `resolved()` leaves nothing open: that is what is hashed into an artefact's version.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from model_ops.openai_api import plain_address
from model_ops.training.settings import LoraSettings, MeshSettings, Seed, Settings, TrainingSettings


def one_process(mesh: MeshSettings) -> MeshSettings:
    """Refuses a mesh for a stage that trains in one process."""
    if mesh.dp_shard == -1 or mesh.resolved().processes > 1:
        raise ValueError("this stage trains in one process; only sft, student and speculator take a mesh")
    return mesh


def copies_and_shards(mesh: MeshSettings) -> MeshSettings:
    """Refuses axes that cut a model's inside, for drafters: they are small, and every process has rows of its own."""
    for axis in ("cp", "ep", "tp"):
        if getattr(mesh, axis) > 1:
            raise ValueError(f"{axis} is {getattr(mesh, axis)}, but a drafter is a layer or a few and is trained on more "
                             f"processes by dp_shard and dp_replicate alone: set {axis} to 1")
    return mesh


class TinyBaseSettings(TrainingSettings):
    """The base model `tiny`: a byte-level BPE and a small Qwen3, trained on modules of Python's standard library that
    `model_ops.standard_library` reserves for it."""

    vocab_size: int = Field(4_096, ge=512, le=2**24, description="Tokens of the byte-level BPE vocabulary")
    hidden_size: int = Field(128, ge=32, le=65_536, multiple_of=8, description="Width of the hidden states")
    layers: int = Field(10, ge=2, le=1_024, description="Number of decoder layers")
    heads: int = Field(4, ge=1, le=1_024, description="Attention heads of a layer")
    kv_heads: int = Field(2, ge=1, le=1_024, description="Heads of keys and values; a divisor of `heads`")
    head_dim: int = Field(32, ge=8, le=1_024, multiple_of=2, description="Width of a head")
    mlp_size: int = Field(384, ge=32, le=2**20, description="Inner width of the MLP")
    _one_process = field_validator("mesh")(one_process)
    max_position_embeddings: int = Field(
        2_048, ge=128, le=2**24, description="Longest context that config.json states, in tokens")
    overflow: Literal["split"] = Field("split", description="A module longer than `max_length` becomes several documents")

    @model_validator(mode="after")
    def _heads_share_keys(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} is no divisor of heads {self.heads}; give a divisor")
        return self

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"steps": 200, "learning_rate": 3e-3, "tokens_per_step": 4_096, "max_length": 512},
        "balanced": {"steps": 1_000, "learning_rate": 3e-3, "tokens_per_step": 8_192, "max_length": 1_024},
        "thorough": {"steps": 5_000, "learning_rate": 2e-3, "tokens_per_step": 16_384, "max_length": 2_048},
    }


class ImportBaseSettings(Settings):
    """base_model from elsewhere: a directory in the Hugging Face layout, or an id on the Hugging Face Hub."""

    model: str = Field(min_length=1, description="a directory, or an id such as Qwen/Qwen3-0.6B")
    revision: str | None = Field(None, description="of a Hub id: a branch, tag or commit; the default branch when open")
    mtp_layer: bool = Field(False, description="whether it must carry a multi-token-prediction layer that is known here: a "
                            "drafter is to begin from it")


class SftSettings(TrainingSettings):
    """Supervised fine-tuning on assistant tokens only. With adapters, a learning rate that is left out is ten times that of the
    preset (Schulman et al., "LoRA Without Regret", 2025)."""

    method: Literal["full", "lora", "qlora"] = Field(
        "full", description="full: train every weight. lora: train adapters beside frozen weights. qlora: the same with the "
        "frozen weights in 4 bits (needs the extra `qlora`)")
    lora: LoraSettings | None = Field(None, description="The adapters, for method lora or qlora. Left out: the defaults below")
    z_loss: float = Field(
        0.0, ge=0, le=1, description="Weight of the squared log-normaliser of the softmax; 1e-4 is a usual value, 0 switches "
        "it off")
    loss_head: Literal["auto", "chunked", "torch", "liger"] = Field(
        "auto", description="Implementation of the loss at the head. auto: the fastest exact one, measured on an accelerator")

    STAY_OPEN: ClassVar[dict[str, str]] = {**TrainingSettings.STAY_OPEN, "lora": "method full has no adapters"}
    ADAPTERS_LEARN_FASTER: ClassVar[float] = 10.0

    @model_validator(mode="after")
    def _adapters_only_where_asked_for(self):
        if self.method == "full" and self.lora is not None:
            raise ValueError("lora is set, but method is full, which trains every weight: set method to lora or qlora, or "
                             "leave lora out")
        return self

    def resolved(self):
        """Open values from the preset; for adapters its learning rate times ten, and the defaults of LoraSettings."""
        filled = super().resolved()
        if self.method == "full":
            return filled
        changes: dict[str, Any] = {"lora": self.lora or LoraSettings()}
        if self.learning_rate is None:
            changes["learning_rate"] = filled.learning_rate * self.ADAPTERS_LEARN_FASTER
        return filled.model_copy(update=changes)


class StudentSettings(TrainingSettings):
    """A shallower student, started from evenly spaced layers of its teacher and distilled from it."""

    enabled: bool = Field(True, description="false: no student is made, and the next stage starts from the fine-tuned model")
    layers: float = Field(
        0.7, gt=0, le=1_024, description="Below 1: share of the teacher's layers to keep. From 1: number of layers to keep, "
        "at most the teacher's")
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature of both distributions in the divergence")
    label_weight: float = Field(
        0.0, ge=0, le=1, description="Share of plain cross-entropy in the loss; 1 is supervised fine-tuning")

    @model_validator(mode="after")
    def _whole_layers(self):
        if self.layers >= 1 and self.layers != int(self.layers):
            raise ValueError("layers must be a share below 1 or a whole number of layers")
        return self


class QuantizeSettings(Settings):
    """Post-training quantization in the compressed-tensors layout."""

    enabled: bool = Field(True, description="false: the model is served as it was trained, without quantization")
    scheme: Literal["w8a8"] = Field("w8a8", description="int8 weights per output channel, int8 activations per token")
    mtp_layer: bool = Field(
        False, description="config.json tells servers that a multi-token-prediction layer beside the model is not quantized. A "
        "recipe with speculator.architecture mtp sets it; leave it out")


class EndpointSettings(Settings):
    """A server that speaks the OpenAI API."""

    base_url: str = Field(description="Address of the API, such as http://localhost:8000/v1, without credentials")
    model: str = Field(min_length=1, description="Name of the model at the server")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the API key. Left out: no key is sent")
    concurrency: int = Field(32, ge=1, le=1024, description="Requests at a time")
    timeout_s: float = Field(600, gt=0, le=86_400, description="Seconds to wait for one answer")
    retries: int = Field(4, ge=0, le=20, description="How often a request that met a busy or failing server is repeated")

    @field_validator("api_key_env")
    @classmethod
    def _name_of_a_variable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):  # it may be the key itself: not shown
            raise ValueError("this is no name of an environment variable; give one such as JUDGE_API_KEY, not the key itself")
        return value

    _plain_address = field_validator("base_url")(plain_address)


class GenerateSettings(Settings):
    """The target's answers to prompts of the traffic, served ones or new ones, which a drafter learns from."""

    prompts: int | None = Field(
        None, ge=1, description="Most turns to answer, in a seeded choice of conversations. Left out: all")
    temperature: float | None = Field(
        None, ge=0, le=100, description="Sampling temperature of every answer, 0 is greedy. Left out: that of each logged "
        "request")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Nucleus sampling of every answer. Left out: that of each logged request")
    served_as: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Model names under which the log shows these very weights: their served token ids "
        "are used as they are. Rows that name the digest of the weights always are")
    endpoint: EndpointSettings | None = Field(
        None, description="Server that holds the very weights of the target and answers. Left out: the project's own generator")
    max_new_tokens: int = Field(
        128, ge=1, le=2**20, description="Most tokens of one answer; fewer where the logged request asked for fewer")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers that the project's own generator decodes together")
    seed: Seed = Field(0, description="Seed of the choice of turns and of sampling")

    @property
    def measured_at(self) -> float:
        """The temperature that gates look at: the one given, else 1."""
        return 1.0 if self.temperature is None else self.temperature


ETA = {"medusa": 10.0}
"""LK-lambda's eta by architecture, where it is not 3 (arXiv 2602.23881)."""


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


class EvaluateSettings(Settings):
    """Measures held-out likelihood of each model, recovery of the quantized one, acceptance length of the drafters."""

    rows: int | None = Field(None, ge=1, description="Most held-out rows for the likelihood. Left out: all")
    prompts: int = Field(200, ge=1, description="Held-out prompts that the drafters are measured on")
    max_new_tokens: int = Field(128, ge=1, le=2**20, description="Most tokens of one measured answer")
    temperatures: list[Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]] = Field(
        default_factory=lambda: [0.0, 1.0], description="Sampling temperatures to measure at, 0 is greedy; that of the "
        "drafter's answers is always among them")
    num_speculative_tokens: int = Field(
        3, ge=1, le=16, description="Tokens drafted per verification; always speculator.num_speculative_tokens, so leave it "
        "out")
    batch_size: int = Field(64, ge=1, le=65_536, description="Answers decoded together")
    max_length: int = Field(4_096, ge=16, le=2**24, description="Tokens of the longest held-out row; a longer one is cut")
    seed: Seed = Field(0, description="Seed of the choice of rows and prompts, and of sampling")


class EmbedSettings(Settings):
    """Texts as vectors: the mean of a model's last hidden states."""

    max_length: int = Field(512, ge=8, description="tokens of a text that are looked at")
    batch: int = Field(32, ge=1, description="texts at a time")


OPERATIONS: dict[str, type[Settings]] = {
    "tiny_base": TinyBaseSettings,
    "import_base": ImportBaseSettings,
    "sft": SftSettings,
    "distill": StudentSettings,
    "quantize": QuantizeSettings,
    "generate": GenerateSettings,
    "speculator": SpeculatorSettings,
    "evaluate": EvaluateSettings,
    "embed": EmbedSettings,
}
"""Operation -> its settings. `model_ops/<operation>.py` holds `run(job, progress) -> metrics`."""


class Job(BaseModel):
    """One operation for one worker.

    inputs name directories: models (`model`, `teacher`, `target`, `base`, ...) in the Hugging Face layout and
    datasets of Parquet files. `output` is a directory that may hold the unfinished work of a killed worker: the
    operation continues it. `output/.work` is scratch (checkpoints, caches) and is removed once the artefact exists.
    """

    model_config = ConfigDict(extra="forbid")

    operation: str
    output: Path
    inputs: dict[str, Path] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    threads: int = Field(2, ge=1, description="CPU threads for torch")

    @model_validator(mode="after")
    def _known(self):
        if self.operation not in OPERATIONS:
            raise ValueError(f"unknown operation {self.operation!r}; known: {', '.join(OPERATIONS)}")
        return self

    def typed_settings(self) -> Any:
        """The settings as the operation's own model, presets resolved."""
        settings = OPERATIONS[self.operation].model_validate(self.settings)
        return settings.resolved() if isinstance(settings, TrainingSettings) else settings
