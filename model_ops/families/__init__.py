"""Facts about model families: which are known (`table.py`, the one list; a new family is one line there), what follows from a
config, where the decoder layers are, and which tensors are layers for multi-token prediction."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.families.loading import attention_with_cache, blocks_of, layer_list, stays_float32
    from model_ops.families.mtp_tensors import (
        BODY_TYPES,
        LAYER,
        has_layers,
        set_apart,
        takes_layer_for_quantized,
        unquantized_layer,
    )
    from model_ops.families.table import FAMILIES, FAST, PACKED, ROUTERS, SHARDED, drafter_shape, known_config, parameters_of

__getattr__, __dir__, __all__ = door(__name__, __file__)
