"""How a family's models are loaded: the decoder layers, the attention for decoding, and tensors that stay float32."""

from typing import Any

from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from model_ops.jobs import ModelError


def attention_with_cache(config: PretrainedConfig) -> str:
    """ "sdpa", or "eager" for models with soft caps or sinks (Gemma 2, gpt-oss), which torch's fused attention lacks."""
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return "eager" if model is not None and not model._supports_sdpa else "sdpa"


def stays_float32(model: Any, tensor: str) -> bool:
    """Whether a family keeps a tensor in float32 whatever the dtype of its weights. DeepSeek-V3's e_score_correction_bias is
    one: rounded, it would send tokens to other experts."""
    return any(part in tensor.split(".") for part in model._keep_in_fp32_modules_strict or ())


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a model, first to last: its largest ModuleList of modules of one class. Raises ModelError if it
    has none."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    lists = [
        blocks for blocks in lists if len({type(block) for block in blocks}) == 1 and any(True for _ in blocks[0].parameters())
    ]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} has no list of blocks to cut or to checkpoint; train it on one process, with "
            "activation_checkpointing: none"
        )
    return max(lists, key=lambda blocks: sum(parameter.numel() for block in blocks for parameter in block.parameters()))


def layer_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The model's decoder layers and their name. Raises ModelError if it has no list of them."""
    depth = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return name, module
    raise ModelError(f"teacher {type(model).__name__} has no list of its {depth} layers; choose another base model")
