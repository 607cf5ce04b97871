"""Config of a DFlash drafter, and the block boundaries of the target that it reads. Importing it imports no torch."""

from pydantic import Field

from model_ops.jobs import ModelError
from model_ops.speculators.decoder_config import DecoderConfig

CAPTURED = 5
"""Number of the target's hidden states that are read by default, if the target is deep enough."""


def captured_boundaries(layers: int, count: int | None) -> tuple[int, ...]:
    """Evenly spaced block boundaries of the target, from the outputs of layers 1 to n - 3, as z-lab chooses them.

    For a shallow target, from the outputs of all layers except the last. Raises ModelError if these are too few.
    """
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
