"""The table of model families: what operations must know of each, without torch. A family that is not in the table is tried
before anything is spent (model_ops/planning/trainable_family.py). `known_config` has common models, so that a plan needs
no download."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal


@cache
def _known() -> dict[str, dict[str, Any]]:
    rows = json.loads(Path(__file__).with_name("known_models.json").read_text(encoding="utf-8"))
    return {name.lower(): row["config"] for row in rows for name in row["ids"]}


def known_config(name: str) -> dict[str, Any] | None:
    """A copy of the config of a Hub id, in any case of letters; None if the table lacks it."""
    config = _known().get(name.lower())
    return None if config is None else dict(config)


def parameters_of(config: dict[str, Any]) -> int | None:
    """Parameters of a decoder with gated MLPs, without biases and norms; all experts of a mixture count. None if the config
    lacks a number."""
    sizes = [config.get(name) for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")]
    numbers = [size for size in sizes if type(size) is int and size > 0]
    if len(numbers) < len(sizes):
        return None
    hidden, inner, layers, vocabulary = numbers
    heads = config.get("num_attention_heads") or 0
    head = config.get("head_dim") or (hidden // heads if heads else 0)
    attention = 2 * hidden * head * (heads + (config.get("num_key_value_heads") or heads)) if heads else 4 * hidden * hidden
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    inner = config.get("moe_intermediate_size") or inner
    embeddings = (1 if config.get("tie_word_embeddings") else 2) * vocabulary * hidden
    return layers * (attention + 3 * hidden * inner * experts) + embeddings


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


Rows = Literal["packed", "one document"]
"""How documents share a training row: several with attention that stays within each, or computed one beside the other, because
the family carries a state along the row."""


@dataclass(frozen=True)
class Family:
    """A model family of transformers, by the `model_type` of its config.json."""

    model_type: str
    title: str
    """Name for people."""
    attention: str
    norms: str
    router: str | None = None
    """attention, norms, router: content of the blocks, for the documentation; router is None for a dense model."""
    rows: Rows = "packed"
    """How training keeps documents apart."""
    fast: bool = False
    """Whether `model_ops.decoding.incremental` decodes it with fused products; other families run transformers' own blocks
    over a cache."""
    shards: bool = False
    """Whether several processes can share its weights."""
    note: str = ""
    """One sentence on what an operation leaves out."""


PRE = "RMSNorm before attention and MLP"
QK = f"{PRE}, and of queries and keys"
AFTER = "RMSNorm after attention and MLP, and of queries and keys"
AROUND = "RMSNorm before and after attention and MLP"
GROUPED = "grouped heads"
WINDOWS = "grouped heads, sliding windows"
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "Llama 3", GROUPED, PRE, fast=True, shards=True),
        Family("qwen2", "Qwen2", GROUPED, PRE, fast=True, shards=True),
        Family("qwen3", "Qwen3", GROUPED, QK, fast=True, shards=True),
        Family("mistral", "Mistral", WINDOWS, PRE, fast=True, shards=True),
        Family("qwen3_moe", "Qwen3-MoE", GROUPED, QK, "softmax, top-k", shards=True),
        Family("mixtral", "Mixtral", GROUPED, PRE, "softmax, top-k"),
        Family("gemma", "Gemma", GROUPED, PRE, shards=True),
        Family("gemma2", "Gemma 2", f"{WINDOWS}, soft cap", AROUND, shards=True),
        Family("gemma3_text", "Gemma 3", WINDOWS, f"{AROUND}, and of queries and keys", shards=True),
        Family(
            "gpt_oss",
            "gpt-oss",
            f"{WINDOWS}, sinks",
            PRE,
            "top-k, softmax",
            shards=True,
            note="int8 leaves the experts in bfloat16, because checkpoints store them as one weight",
        ),
        Family("phi3", "Phi-3", GROUPED, PRE),
        Family("olmo2", "OLMo 2", GROUPED, AFTER),
        Family("olmo3", "OLMo 3", WINDOWS, AFTER),
        Family("smollm3", "SmolLM3", f"{GROUPED}, some layers without RoPE", PRE),
        Family("granite", "Granite", GROUPED, PRE),
        Family("glm4", "GLM-4", f"{GROUPED}, RoPE on half of a head", AROUND),
        Family("glm4_moe", "GLM-4-MoE", f"{GROUPED}, RoPE on half of a head", QK, "sigmoid, groups, top-k, shared expert"),
        Family("seed_oss", "Seed-OSS", GROUPED, PRE),
        Family("cohere2", "Cohere 2", f"{WINDOWS}, full layers without RoPE", "LayerNorm before a parallel block"),
        Family("deepseek_v3", "DeepSeek-V3", "latent (MLA)", f"{PRE}, and of latents", "sigmoid, groups, top-k, shared expert"),
        Family(
            "qwen3_next",
            "Qwen3-Next",
            "gated delta rule, every fourth layer full",
            QK,
            "softmax, top-k, shared expert",
            rows="one document",
        ),
        Family("lfm2", "LFM2", "short convolutions, some layers full", QK, rows="one document"),
    )
}
"""model_type -> family, in the order of documentation."""

FAST = tuple(name for name, family in FAMILIES.items() if family.fast)
"""Families that the fast decoder runs."""

PACKED = tuple(name for name, family in FAMILIES.items() if family.rows == "packed")
"""Families in which attention is all that connects tokens, as tests prove."""

SHARDED = tuple(name for name, family in FAMILIES.items() if family.shards)
"""Families that several processes can train together, by any mesh."""


ROUTERS = ("gate", "router", "shared_expert_gate")
"""Last parts of the names of linear layers that route tokens to experts."""
