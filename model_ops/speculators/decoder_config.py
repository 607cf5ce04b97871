"""What configs of drafters with decoder layers share. Importing it imports no torch."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from model_ops.families import drafter_shape
from model_ops.jobs import ModelError


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

    def fields(self) -> dict[str, Any]:
        """The fields that a config.json has under the same names."""
        return self.model_dump(include={*DecoderConfig.model_fields} - {"target_layers", "num_layers"})


def rope_of(raw: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """The rotary parameters of a config.json for transformers 4 or 5. theta: of one that names none."""
    older = {"rope_theta": raw.get("rope_theta", theta), **(raw.get("rope_scaling") or {"rope_type": "default"})}
    return raw.get("rope_parameters") or older


FUSED_STATES = 3
"""Number of the target's hidden states that are fused."""


def default_layer_ids(layers: int) -> tuple[int, int, int]:
    """Default boundaries of servers: 2, n // 2, n - 3. Below 7 layers these are not distinct (servers treat them as a set), so
    others are chosen and must be in the config. Raises ModelError below 4 layers, because there are fewer than three boundaries
    between blocks."""
    if layers >= 7:
        return 2, layers // 2, layers - 3
    if layers < 4:
        raise ModelError(
            f"EAGLE-3 reads three boundaries between blocks, but a target of {layers} layers has fewer: choose "
            "another architecture, such as draft_model"
        )
    return 1, layers // 2, layers - 1


MOST_LAYERS = 64
"""Above this, the layer count was probably copied from the target."""


def speculators_name(name: str) -> str:
    """A tensor's name in the speculators layout."""
    return name.replace("midlayer.", "layers.0.", 1)


class Eagle3Config(DecoderConfig):
    """Config of an EAGLE-3 drafter. layer_ids are block boundaries of the target."""

    draft_vocab_size: int
    layer_ids: tuple[int, int, int]
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def for_target(cls, target: Any, draft_vocab_size: int, **own: Any) -> Self:
        """The drafter config for a target's Hugging Face config: same width, heads, rotary positions and length. own: fields
        that do not follow from the target, such as num_layers and the flags."""
        return cls(
            **drafter_shape(target),
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
            layer_ids=default_layer_ids(target.num_hidden_layers),
            target_layers=target.num_hidden_layers,
            **own,
        )


CAPTURED = 5
"""Number of the target's hidden states that are read by default, if the target is deep enough."""


def captured_boundaries(layers: int, count: int | None) -> tuple[int, ...]:
    """Evenly spaced block boundaries of the target, from the outputs of layers 1 to n - 3, as z-lab chooses them. For a shallow
    target, from the outputs of all layers except the last. Raises ModelError if these are too few."""
    count = min(CAPTURED, layers - 1) if count is None else count
    if not 1 <= count < layers:
        raise ModelError(
            f"DFlash reads {max(1, count)} boundaries between blocks, but a target of {layers} layers has "
            f"{max(0, layers - 1)}: lower captured_layers, or choose a deeper target"
        )
    if count == 1:
        return (layers // 2 + 1,) if layers > 2 else (1,)
    first, last = (1, layers - 3) if layers - 3 >= count else (0, layers - 2)
    return tuple(round(first + place * (last - first) / (count - 1)) + 1 for place in range(count))


class DFlashConfig(DecoderConfig):
    """Config of a DFlash drafter. layer_ids are block boundaries of the target."""

    layer_ids: tuple[int, ...] = Field(min_length=1)
    block_size: int = Field(ge=2)
    mask_token_id: int = Field(ge=0)
