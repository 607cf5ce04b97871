"""The table of model families: what operations must know of each, names of routers included. Importing it imports no torch.

    FAMILIES["qwen3"].fast, FAMILIES["lfm2"].rows

A family that is not in the table is tried before anything is spent (model_ops/planning/unknown_family.py). `millrace models`
prints what each family can do; a slow test runs every operation on every family here.
"""

from dataclasses import dataclass
from typing import Literal

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
