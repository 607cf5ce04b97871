"""Fields of a drafter's config.json for its decoder layers, for servers with transformers 4 and 5.

    {**decoder_fields(config, torch.bfloat16), "model_type": "llama", "mlp_bias": False}
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from model_ops.speculators.dflash_config import DFlashConfig
from model_ops.speculators.draft_model_files import name_of
from model_ops.speculators.eagle3_config import Eagle3Config

ROPE_KEYS_OF_V4 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
                   "attention_factor", "beta_fast", "beta_slow")


def decoder_fields(config: Eagle3Config | DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Fields of all kinds of layers: shapes, positions, eos ids. dtype: of the weights."""
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    scaling = None
    if kind != "default":
        scaling = {"rope_type": kind, **{key: rope[key] for key in ROPE_KEYS_OF_V4 if key in rope}}
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "dtype": name_of(dtype),
        "eos_token_id": config.eos_token_id,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "pad_token_id": config.pad_token_id,
        "rms_norm_eps": config.rms_norm_eps,
        # transformers 5 reads rope_parameters, transformers 4 the other two fields
        "rope_parameters": dict(rope),
        "rope_scaling": scaling,
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "tie_word_embeddings": False,
        "torch_dtype": name_of(dtype),
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def rotary_embedding(config: Eagle3Config | DFlashConfig) -> nn.Module:
    """transformers' rotary embedding for the positions of a drafter's decoder layers."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(LlamaConfig(
        hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads, head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings, rope_parameters=config.rope_parameters))
