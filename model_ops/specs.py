"""What a worker can be asked to do: one pydantic model per operation, and the job that carries it.

A job is a JSON file: an operation, where its inputs lie, where its output goes, and its settings. The assets write
it, `python -m model_ops.worker JOB.json` carries it out. Importing this module imports no torch, so the Dagster
definitions and the recipe share these models.

Presets (`quick`, `balanced`, `thorough`) fill every hyperparameter that is left open; each of them can be set beside
the preset. `resolved()` leaves nothing open: that is what is hashed into an artefact's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from model_ops.answering.settings import EndpointSettings, GenerateSettings
from model_ops.speculators.registry import AnySpeculatorSettings
from model_ops.training.settings import LoraSettings, MeshSettings, Seed, Settings, TrainingSettings

__all__ = [
    "OPERATIONS", "EmbedSettings", "EndpointSettings", "EvaluateSettings", "GenerateSettings", "ImportBaseSettings", "Job",
    "QuantizeSettings", "SftSettings", "StudentSettings", "TinyBaseSettings", "settings_of",
]


def one_process(mesh: MeshSettings) -> MeshSettings:
    """Refuses a mesh for a stage that trains in one process."""
    if mesh.dp_shard == -1 or mesh.resolved().processes > 1:
        raise ValueError("this stage trains in one process; only sft, student and speculator take a mesh")
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
            raise ValueError(f"layers is {self.layers:g}; it must be a share below 1 or a whole number of layers")
        return self


class QuantizeSettings(Settings):
    """Post-training quantization in the compressed-tensors layout."""

    enabled: bool = Field(True, description="false: the model is served as it was trained, without quantization")
    scheme: Literal["w8a8"] = Field("w8a8", description="int8 weights per output channel, int8 activations per token")
    mtp_layer: bool = Field(
        False, description="config.json tells servers that a multi-token-prediction layer beside the model is not quantized. A "
        "recipe with speculator.architecture mtp sets it; leave it out")


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


OPERATIONS: dict[str, Any] = {
    "tiny_base": TinyBaseSettings,
    "import_base": ImportBaseSettings,
    "sft": SftSettings,
    "distill": StudentSettings,
    "quantize": QuantizeSettings,
    "generate": GenerateSettings,
    "speculator": AnySpeculatorSettings,
    "evaluate": EvaluateSettings,
    "embed": EmbedSettings,
}
"""Operation -> its settings model, or a union of models. `model_ops/<operation>.py` holds `run(job, progress) -> metrics`."""


@cache
def _validator(operation: str) -> TypeAdapter[Any]:
    return TypeAdapter(OPERATIONS[operation])


def settings_of(operation: str, values: Mapping[str, Any]) -> Any:
    """The settings of an operation from plain values. Raises pydantic's ValidationError."""
    return _validator(operation).validate_python(dict(values))


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
        settings = settings_of(self.operation, self.settings)
        return settings.resolved() if isinstance(settings, TrainingSettings) else settings
