"""What each dimension of a parameter is, by its name: the logical axes that sharding rules speak of.

    axes_of("model.layers.3.self_attn.o_proj.weight", "llama")     # ("embed", "heads")

vocab: token ids. embed: the residual stream. heads, kv_heads: attention heads times their size; only whole heads are
cut. mlp: the inner width of a feed-forward. expert: the experts of a mixture. router: what chooses them. norm: a norm's
weights. None: an adapter's rank. `layers` is no dimension in torch: it is the list of blocks, each of which is gathered and
freed as one. Names are those of transformers 5; Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3 share one table, Qwen3-MoE and
gpt-oss add their experts. A name that is in no table has no logical axes (all None): nothing but fsdp cuts it.
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
"""End of a parameter's name -> the logical axis of each of its dimensions. The first that matches is taken."""

OF_MODEL_TYPE: Mapping[str, tuple[tuple[str, Axes], ...]] = {
    "gpt_oss": (  # its expert matrices lie the other way round: inputs first
        (r"mlp\.experts\.gate_up_proj", ("expert", "embed", "mlp")),
        (r"mlp\.experts\.down_proj", ("expert", "mlp", "embed")),
    ),
}
"""Tried before PATTERNS for one architecture."""

BLOCK = re.compile(r"(.*\blayers)\.(\d+)\.")
"""Where the blocks of a model lie."""


def axes_of(name: str, dimensions: int, model_type: str) -> Axes:
    """The logical axes of a parameter; None for each of its dimensions where its name is not known."""
    base, _, adapter = name.rpartition(".lora_")
    if base and dimensions == 2:
        outer, inner = axes_of(f"{base}.weight", 2, model_type)
        return (None, inner) if adapter.startswith("A") else (outer, None)
    for pattern, axes in (*OF_MODEL_TYPE.get(model_type, ()), *PATTERNS):
        if re.search(rf"(^|\.|_){pattern}$", name) and len(axes) == dimensions:
            return axes
    return (None,) * dimensions


def unit_of(axis: str | None, size: int, config: Any) -> int:
    """How many neighbouring values of a dimension stay together: those of one head, else 1."""
    heads = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads}.get(axis)
    return size // heads if heads else 1
