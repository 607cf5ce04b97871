"""Logical axes of each dimension of a parameter, by the parameter's name, for sharding rules.

    axes_of("model.layers.3.self_attn.o_proj.weight", "llama")     # ("embed", "heads")

vocab: token ids. embed: residual stream. heads, kv_heads: heads x head_dim, split only into whole heads. mlp: inner width of a
feed-forward layer. expert: experts of a mixture. router: outputs of a router. norm: weights of a norm. None: rank of an
adapter. `layers` is not a dimension in torch but the list of blocks, each of which FSDP gathers and frees as a unit. Parameter
names are from transformers 5; Llama, Mistral, Qwen2, Qwen3 and Gemma 1 to 3 share one table, Qwen3-MoE and gpt-oss add
their experts. An unknown name has no logical axes (all None), so only fsdp shards it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Axes = tuple[str | None, ...]

PATTERNS: tuple[tuple[str, Axes], ...] = (
    (r"embed_tokens\.weight", ("vocab", "embed")),
    (r"lm_head\.weight", ("vocab", "embed")),
    (r"lm_head\.bias", ("vocab",)),
    (r"self_attn\.q_proj\.weight", ("heads", "embed")),
    (r"self_attn\.q_proj\.bias", ("heads",)),
    (r"self_attn\.[kv]_proj\.weight", ("kv_heads", "embed")),
    (r"self_attn\.[kv]_proj\.bias", ("kv_heads",)),
    (r"self_attn\.o_proj\.weight", ("embed", "heads")),
    (r"self_attn\.sinks", ("heads",)),
    (r"mlp\.experts\.gate_up_proj", ("expert", "mlp", "embed")),
    (r"mlp\.experts\.down_proj", ("expert", "embed", "mlp")),
    (r"mlp\.experts\.gate_up_proj_bias", ("expert", "mlp")),
    (r"mlp\.experts\.down_proj_bias", ("expert", "embed")),
    (r"mlp\.(gate|router)\.weight", ("router", "embed")),
    (r"mlp\.router\.bias", ("router",)),
    (r"mlp\.(gate|up)_proj\.weight", ("mlp", "embed")),
    (r"mlp\.(gate|up)_proj\.bias", ("mlp",)),
    (r"mlp\.down_proj\.weight", ("embed", "mlp")),
    (r"(o|down)_proj\.bias", ("embed",)),
    (r"\w*norm\.weight", ("norm",)),
)
"""(end of a parameter's name, logical axis of each dimension); the first match counts."""

OF_MODEL_TYPE: Mapping[str, tuple[tuple[str, Axes], ...]] = {
    "gpt_oss": (  # its expert matrices are transposed: inputs first
        (r"mlp\.experts\.gate_up_proj", ("expert", "embed", "mlp")),
        (r"mlp\.experts\.down_proj", ("expert", "mlp", "embed")),
    ),
}
"""Patterns by architecture, tried before PATTERNS."""


def axes_of(name: str, dimensions: int, model_type: str) -> Axes:
    """The logical axis of each dimension of a parameter; None for all if its name is unknown."""
    base, _, adapter = name.rpartition(".lora_")
    if base and dimensions == 2:
        outer, inner = axes_of(f"{base}.weight", 2, model_type)
        return (None, inner) if adapter.startswith("A") else (outer, None)
    for pattern, axes in (*OF_MODEL_TYPE.get(model_type, ()), *PATTERNS):
        if re.search(rf"(^|\.|_){pattern}$", name) and len(axes) == dimensions:
            return axes
    return (None,) * dimensions


def unit_of(axis: str | None, size: int, config: Any) -> int:
    """Number of consecutive values of a dimension that must stay together: head_dim for heads, else 1."""
    heads = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads}.get(axis)
    return size // heads if heads else 1
