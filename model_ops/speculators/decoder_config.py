"""What configs of drafters with decoder layers share. Importing it imports no torch."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class DecoderConfig(BaseModel):
    """Shapes and rotary positions of a drafter's decoder layers, and special ids."""

    model_config = ConfigDict(extra="forbid")

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    vocab_size: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    rms_norm_eps: float = Field(gt=0)
    rope_parameters: dict[str, Any]
    target_layers: int = Field(ge=1)
    num_layers: int = Field(1, ge=1)
    eos_token_id: int | list[int] | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None


def rope_of(raw: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """The rotary parameters of a config.json for transformers 4 or 5. theta: of one that names none."""
    older = {"rope_theta": raw.get("rope_theta", theta), **(raw.get("rope_scaling") or {"rope_type": "default"})}
    return raw.get("rope_parameters") or older
