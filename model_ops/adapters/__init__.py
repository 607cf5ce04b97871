"""LoRA adapters: where they sit in a model, their scale, how they are merged, and their directory in PEFT's format. Start with
`lora.py`; `nf4.py` is the 4-bit base of QLoRA. Training is in `training`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.adapters.adapter_base import CONFIG, WEIGHTS, base_of_adapter, is_adapter, model_places, tokenizer_directory
    from model_ops.adapters.adapter_directory import save_adapter
    from model_ops.adapters.lora import (
        PREFIX,
        LoraLinear,
        adaptable_names,
        adaptable_parameters,
        adapted_names,
        adapted_parameters,
        add_adapters,
        frozen_parameter,
        merge_adapters,
        merged_weights,
    )
    from model_ops.adapters.lora_settings import LoraSettings
    from model_ops.adapters.nf4 import nf4_layers, quantization_error, quantized_parameters

__getattr__, __dir__, __all__ = door(__name__, __file__)
