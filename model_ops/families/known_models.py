"""Configurations of common models on the Hugging Face Hub, for plans made before a model is in the local cache.

    known_config("Qwen/Qwen3-8B")            # {"model_type": "qwen3", "hidden_size": 4096, ...}; None for other ids
    parameters_of(config)                    # about 8.2e9

known_models.json holds what decides about size and speed, no weights and no tokenizer; a run reads the model's own config.json.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _known() -> dict[str, dict[str, Any]]:
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
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
