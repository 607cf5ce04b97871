"""Tiny configurations of every architecture that is trained: with grouped heads, and with whatever it has of its own.

Sliding windows are shorter than the documents of the tests, soft caps low enough to bend the scores.
"""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import model_ops.models.attention  # noqa: F401  registers "packed"

WINDOW = 20
MIXED = ["sliding_attention", "full_attention"]
DENSE = {"intermediate_size": 48}

ARCHITECTURES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", DENSE),
    "qwen2": ("qwen2", {**DENSE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**DENSE, "head_dim": 8}),
    "qwen3_moe": ("qwen3_moe", {"intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 4,
                                "num_experts_per_tok": 2, "head_dim": 8, "norm_topk_prob": True}),
    "mistral": ("mistral", {**DENSE, "sliding_window": WINDOW, "head_dim": 8}),
    "gemma": ("gemma", {**DENSE, "head_dim": 8}),
    "gemma2": ("gemma2", {**DENSE, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 12,
                          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "layer_types": MIXED}),
    "gemma3": ("gemma3_text", {**DENSE, "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 12,
                               "layer_types": MIXED}),
    "gpt_oss": ("gpt_oss", {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
                            "sliding_window": WINDOW, "layer_types": MIXED}),
}


def build(name: str, attention: str = "packed", vocab_size: int = 61, seed: int = 5, **changes) -> PreTrainedModel:
    """A random float32 model whose attention is far from uniform. Same name and seed, same weights."""
    model_type, own = ARCHITECTURES[name]
    config = AutoConfig.for_model(model_type, **{
        "vocab_size": vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2,
        "pad_token_id": 0, "attention_dropout": 0.0, **own, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in sorted(model.named_parameters()):
            spread = 0.1 if "norm" in parameter_name else 1.0 if "sinks" in parameter_name else 0.25
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
            if "norm" in parameter_name and "gemma" not in name:
                parameter.add_(1.0)
    return model.eval()
