"""Tiny random models for the tests: every supported architecture, small enough to run in milliseconds."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def tiny_model(model_type: str = "qwen3", layers: int = 8, vocab_size: int = 96, tied: bool = True, seed: int = 0,
               **changes):
    """A random float32 model in evaluation mode; weights large enough that its distributions are not flat."""
    torch.manual_seed(seed)
    fields = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocab_size, "max_position_embeddings": 256,
        "tie_word_embeddings": tied, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None,
        "initializer_range": 0.2, **changes,
    }
    config = AutoConfig.for_model(model_type, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval().requires_grad_(False)
