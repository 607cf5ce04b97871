"""Facts about model families: which are known, what follows from a config, where the decoder layers are.

`table.py` is the one list of families, for training, decoding, quantizing and documentation; a new family is one line there.
`known_models.py` has configs of common models, so that a plan needs no download. `loading.py` has what is decided from a
loaded model or its class; `mtp_tensors.py` finds the layer for multi-token prediction that some families have.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.families.drafters import drafter_shape
    from model_ops.families.known_models import known_config, parameters_of
    from model_ops.families.loading import attention_with_cache, blocks_of, layer_list, stays_float32
    from model_ops.families.mtp_tensors import (
        BODY_TYPES,
        LAYER,
        has_layers,
        set_apart,
        takes_layer_for_quantized,
        unquantized_layer,
    )
    from model_ops.families.table import FAMILIES, FAST, PACKED, ROUTERS, SHARDED

__getattr__, __dir__, __all__ = door(__name__, __file__)
