"""Settings of operation `tiny_base`. Importing this file imports no torch."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from model_ops.parallel import MeshSettings
from model_ops.training import TrainingSettings


def one_process(mesh: MeshSettings) -> MeshSettings:
    """Refuses a mesh for a stage that trains in one process."""
    if not mesh.alone:
        raise ValueError("this stage trains in one process; leave mesh out (sft, student and speculator support it)")
    return mesh


class TinyBaseSettings(TrainingSettings):
    """The base model `tiny`: a byte-level BPE and a small Qwen3, trained on modules of Python's standard library that
    `model_ops.files.standard_library` reserves for it."""

    vocab_size: int = Field(4_096, ge=512, le=2**24, description="Tokens of the byte-level BPE vocabulary")
    hidden_size: int = Field(128, ge=32, le=65_536, multiple_of=8, description="Width of the hidden states")
    layers: int = Field(10, ge=2, le=1_024, description="Number of decoder layers")
    heads: int = Field(4, ge=1, le=1_024, description="Attention heads of a layer")
    kv_heads: int = Field(2, ge=1, le=1_024, description="Heads of keys and values; a divisor of `heads`")
    head_dim: int = Field(32, ge=8, le=1_024, multiple_of=2, description="Width of a head")
    mlp_size: int = Field(384, ge=32, le=2**20, description="Inner width of the MLP")
    _one_process = field_validator("mesh")(one_process)
    max_position_embeddings: int = Field(
        2_048, ge=128, le=2**24, description="Longest context that config.json states, in tokens"
    )
    overflow: Literal["split"] = Field("split", description="A module longer than `max_length` becomes several documents")

    @model_validator(mode="after")
    def _heads_share_keys(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} is not a divisor of heads {self.heads}; give a divisor")
        return self

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"steps": 200, "learning_rate": 3e-3, "tokens_per_step": 4_096, "max_length": 512},
        "balanced": {"steps": 1_000, "learning_rate": 3e-3, "tokens_per_step": 8_192, "max_length": 1_024},
        "thorough": {"steps": 5_000, "learning_rate": 2e-3, "tokens_per_step": 16_384, "max_length": 2_048},
    }
