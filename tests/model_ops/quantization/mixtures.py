"""Small mixtures of experts of several families, to quantize: widths that int4 in groups of 32 takes."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.models.tiny_families import COMMON, OWN, scatter_weights

WIDTHS = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {**OWN["deepseek_v3"], **WIDTHS, "q_lora_rank": 32, "kv_lora_rank": 32, "v_head_dim": 8}
MIXTURES = {
    "mixtral": {**OWN["mixtral"], **WIDTHS},
    "qwen3_moe": {**OWN["qwen3_moe"], **WIDTHS},
    "glm4_moe": {**OWN["glm4_moe"], **WIDTHS, "head_dim": 16},
    "qwen3_next": {**OWN["qwen3_next"], **WIDTHS, "shared_expert_intermediate_size": 32},
    "deepseek_v3": LATENT,
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "qwen2_moe": {**EXPERTS, **WIDTHS, "shared_expert_intermediate_size": 32},
    "olmoe": {**EXPERTS, **WIDTHS},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2, "head_dim": 16, **WIDTHS},
}
"""model_type -> config values; COMMON gives the others."""


def mixture(family, seed=5, **changes):
    """A random float32 model."""
    config = AutoConfig.for_model(family, **{**COMMON, **MIXTURES.get(family, WIDTHS), **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="packed", dtype=torch.float32)
    scatter_weights(model, seed)
    return model.eval()
