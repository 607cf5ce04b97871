"""Shapes and positions of a drafter's decoder layers that follow from its target's config, in every family. No torch.

    drafter_shape(target.config)     # keyword arguments of EAGLE-3's and DFlash's configs

The drafter's layers are Llama's whatever the target's are. They take the target's width, and heads, positions and norm as far
as Llama's layers have them: the RoPE of full attention on whole heads, and with latent attention heads that divide the width.
"""

from typing import Any

EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon")
"""Names of a norm's epsilon in configs."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""RoPE types that every server computes alike for a drafter; others become "default" with the same base."""


def drafter_shape(target: Any) -> dict[str, Any]:
    """Sizes, heads, max_position_embeddings, rms_norm_eps, rope_parameters and special ids."""
    heads, width = target.num_attention_heads, target.hidden_size
    kv_heads = getattr(target, "num_key_value_heads", None) or heads
    head_dim = getattr(target, "head_dim", None) or width // heads
    if getattr(target, "kv_lora_rank", None):  # latent attention: its heads have no width that Llama's layers could take
        head_dim = width // heads if width % heads == 0 else 128
        kv_heads = heads
    return {
        "hidden_size": width,
        "intermediate_size": target.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim + head_dim % 2,
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": next((value for name in EPSILONS if (value := getattr(target, name, None)) is not None), 1e-6),
        "rope_parameters": drafter_rope(target),
        "eos_token_id": target.eos_token_id,
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
    }


def drafter_rope(target: Any) -> dict[str, Any]:
    """RoPE parameters of a target's full attention, without the share of a head that it rotates."""
    rope = dict(getattr(target, "rope_parameters", None) or {})
    if any(isinstance(part, dict) for part in rope.values()):  # by kind of layer (Gemma 3)
        rope = dict(rope.get("full_attention") or next(part for part in rope.values() if isinstance(part, dict)))
    if rope.get("rope_type", "default") not in ROPE_TYPES:
        return {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10_000.0)}
    rope.pop("partial_rotary_factor", None)
    return rope or {"rope_type": "default", "rope_theta": 10_000.0}
