"""LoRA adapters: where they sit in a model, their scale, how they are merged, and their directory in the format of PEFT.

`lora.py` scales, adds and merges the adapter of a linear layer; `lora_parameters.py` does so for experts stored as one
three-dimensional weight. `lora_settings.py` has the recipe's keys and the scale, `nf4.py` the 4-bit base of QLoRA,
`adapter_directory.py` saves, `adapter_base.py` finds an adapter's base without torch. Training is in `training`.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.adapters.adapter_base import CONFIG, WEIGHTS, base_of_adapter, is_adapter, model_places, tokenizer_directory
    from model_ops.adapters.adapter_directory import save_adapter
    from model_ops.adapters.lora import LoraLinear, adaptable_names, adapted_names, add_adapters, merge_adapters, merged_weights
    from model_ops.adapters.lora_parameters import PREFIX, adaptable_parameters, adapted_parameters
    from model_ops.adapters.lora_settings import LoraSettings
    from model_ops.adapters.nf4 import nf4_layers, quantization_error, quantized_parameters

__getattr__, __dir__, __all__ = door(__name__, __file__)
