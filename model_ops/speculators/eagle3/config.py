"""Configs of EAGLE-3 drafters, and the target's block boundaries that they read. Importing it imports no torch.

config = Eagle3Config.for_target(target.config, draft_vocab_size=2_000)
"""

from typing import Any, Self

from model_ops.families import drafter_shape
from model_ops.jobs import ModelError
from model_ops.speculators.decoder_config import DecoderConfig

CAPTURED = 3
"""Number of the target's hidden states that are fused."""


def default_layer_ids(layers: int) -> tuple[int, int, int]:
    """Default boundaries of servers: 2, n // 2, n - 3.

    Below 7 layers these are not distinct (servers treat them as a set), so others are chosen and must be in the config. Raises
    ModelError below 4 layers, because there are fewer than three boundaries between blocks.
    """
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
        """The drafter config for a target's Hugging Face config: same width, heads, rotary positions and length.

        own: fields that do not follow from the target, such as num_layers and the flags.
        """
        return cls(
            **drafter_shape(target),
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
            layer_ids=default_layer_ids(target.num_hidden_layers),
            target_layers=target.num_hidden_layers,
            **own,
        )
