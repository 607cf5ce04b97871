"""How a family's models are loaded: the attention for decoding, and tensors that stay float32."""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig


def attention_with_cache(config: PretrainedConfig) -> str:
    """"sdpa", or "eager" for models with soft caps or sinks (Gemma 2, gpt-oss), which torch's fused attention lacks."""
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return "eager" if model is not None and not model._supports_sdpa else "sdpa"


def stays_float32(model: Any, tensor: str) -> bool:
    """Whether a family keeps a tensor in float32 whatever the dtype of its weights.

    DeepSeek-V3's e_score_correction_bias is one: rounded, it would send tokens to other experts.
    """
    return any(part in tensor.split(".") for part in model._keep_in_fp32_modules_strict or ())
