"""LoRA adapters: where they sit in a model, their scale, how they are merged, and their directory in the format of PEFT.

`lora.py` is the place where an adapter's product is scaled and added, and where it is merged into the base.
`lora_settings.py` has the recipe's keys, `nf4.py` the 4-bit base of QLoRA, `adapter_directory.py` saving. `adapter_base.py`
finds the base of an adapter directory without torch. Training them is in `training`.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.adapters.adapter_base import CONFIG, WEIGHTS, base_of_adapter, is_adapter, model_places, tokenizer_directory
    from model_ops.adapters.adapter_directory import save_adapter
    from model_ops.adapters.lora import LoraLinear, adaptable_names, adapted_names, add_adapters, merge_adapters
    from model_ops.adapters.lora_parameters import PREFIX, adaptable_parameters, adapted_parameters
    from model_ops.adapters.lora_settings import LoraSettings
    from model_ops.adapters.nf4 import nf4_layers, quantization_error, quantized_parameters

__getattr__, __dir__, __all__ = door(__name__, __file__)
