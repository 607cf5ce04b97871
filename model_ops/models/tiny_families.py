"""Tiny random models of every family in the table, to try operations on them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.models.experts import use_grouped_experts
from model_ops.models.isolation import isolate_documents

COMMON = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "attention_dropout": 0.0,
}  # fmt: skip
"""Config values of every tiny model; a family's own values replace them."""

WINDOW = 20
"""Sliding window, shorter than the documents that the models are tried on."""

MIXED = ["sliding_attention", "full_attention"]
_DENSE = {"intermediate_size": 48}
_EXPERTS = {"intermediate_size": 48, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
_HALVES = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}

OWN: dict[str, dict[str, Any]] = {
    "llama": _DENSE,
    "qwen2": {**_DENSE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {**_DENSE, "head_dim": 8},
    "mistral": {**_DENSE, "sliding_window": WINDOW, "head_dim": 8},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4, "head_dim": 8, "norm_topk_prob": True},
    "mixtral": {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "gemma": {**_DENSE, "head_dim": 8},
    "gemma2": {
        **_DENSE, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0, "layer_types": MIXED,
    },
    "gemma3_text": {**_DENSE, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 12, "layer_types": MIXED},
    "gpt_oss": {
        "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": WINDOW,
        "layer_types": MIXED,
    },
    "phi3": {**_DENSE, "original_max_position_embeddings": 256, "resid_pdrop": 0.0},
    "olmo2": _DENSE,
    "olmo3": {**_DENSE, "sliding_window": WINDOW, "layer_types": MIXED},
    "smollm3": {**_DENSE, "no_rope_layers": [1, 0]},
    "granite": {
        **_DENSE, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0, "attention_multiplier": 0.4,
    },
    "glm4": {**_DENSE, "head_dim": 8, "rope_parameters": _HALVES},
    "glm4_moe": {
        **_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "head_dim": 8,
        "first_k_dense_replace": 1, "use_qk_norm": True, "rope_parameters": _HALVES,
    },
    "seed_oss": {**_DENSE, "head_dim": 8, "residual_dropout": 0.0},
    "cohere2": {**_DENSE, "sliding_window": WINDOW, "layer_types": MIXED, "logit_scale": 0.5},
    "deepseek_v3": {
        **_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "q_lora_rank": 16,
        "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "head_dim": 4,
        "first_k_dense_replace": 1, "num_key_value_heads": 4,
    },
    "qwen3_next": {
        **_EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 24,
        "head_dim": 8,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": _HALVES,
    },
    "lfm2": {**_DENSE, "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"]},
}  # fmt: skip
"""model_type -> config values with everything that the family has of its own; COMMON gives the others. Soft caps are low enough
to bend the scores."""

PER_LAYER = ("layer_types", "no_rope_layers")
"""Config values with one entry for each layer, repeated for deeper models."""


def tiny_config(name: str, **changes: Any) -> PretrainedConfig:
    """The config of a tiny model of a family; `changes` replace values. Lists by layer are repeated to its depth."""
    values = {**COMMON, **OWN[name], **changes}
    for key in PER_LAYER:
        if key in values and key not in changes:
            repeats = -(-values["num_hidden_layers"] // len(values[key]))
            values[key] = (list(values[key]) * repeats)[: values["num_hidden_layers"]]
    return AutoConfig.for_model(name, **values)


def tiny_model(name: str, attention: str = "packed", seed: int = 5, **changes: Any) -> PreTrainedModel:
    """A random float32 model in evaluation mode whose attention is far from uniform. Same family and seed, same weights."""
    model = AutoModelForCausalLM.from_config(tiny_config(name, **changes), attn_implementation=attention, dtype=torch.float32)
    scatter_weights(model, seed)
    use_grouped_experts(model)
    if attention == "packed":
        isolate_documents(model, Path(name))
    return model.eval()


@torch.no_grad()
def scatter_weights(model: PreTrainedModel, seed: int) -> None:
    """Draws every parameter anew, with values large enough that a wrong mask or position changes the outputs."""
    generator = torch.Generator().manual_seed(seed)
    around_zero = model.config.model_type.startswith(("gemma", "qwen3_next"))  # their norms scale by 1 + weight
    for name, parameter in sorted(model.named_parameters()):
        norm = "norm" in name
        spread = 0.1 if norm else 1.0 if "sinks" in name else 0.25
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
        if norm and not around_zero:
            parameter.add_(1.0)
