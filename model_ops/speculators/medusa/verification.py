"""Checks saved MEDUSA heads for vLLM.

vLLM takes any key of a MEDUSA config that holds `num` and `heads` or `layers` for the number of heads or of residual
layers. vLLM 0.32 loads no draft vocabulary of MEDUSA heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_ops.files import TensorHeader
from model_ops.models import Defect, Shapes, verify_model
from model_ops.speculators.verify_layers import verify_ends, verify_sizes


def verify_medusa(
    config: Mapping[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """A directory of MEDUSA heads: config against tensors, vocabulary map, and the target if known."""
    problems = verify_model.missing_numbers(config, ("hidden_size", "vocab_size", "num_heads", "num_hidden_layers"))
    drafted = config.get("truncated_vocab_size") or config.get("vocab_size")
    if problems or type(drafted) is not int:
        return problems or [Defect("config.json", f"truncated_vocab_size is {drafted!r}, not a whole number")]
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in tensors.items()}
    problems = verify_model.compare_shapes(_medusa_shapes(config, drafted), tensors)
    problems += verify_model.verify_dtype(config, tensors)
    problems += [
        Defect("config.json", f"{name} would be read by vLLM as the number of {kind}: leave it out")
        for kind, meant in (("heads", "num_heads"), ("layers", "num_hidden_layers"))
        for name in config
        if "num" in name and kind in name and name != meant
    ]
    if drafted < config["vocab_size"] and not config.get("original_lm_head", False):
        problems.append(
            Defect(
                "config.json",
                f"truncated_vocab_size is {drafted} and original_lm_head is not true: vLLM "
                "takes heads of their own with the whole vocabulary only",
            )
        )
    if drafted < config["vocab_size"]:
        problems.append(
            Defect(
                "config.json",
                f"truncated_vocab_size is {drafted}: vLLM 0.32 refuses to load a draft "
                "vocabulary of MEDUSA heads, train them with the whole one",
            )
        )
    if "token_map" in tensors and drafted < config["vocab_size"]:
        problems += _verify_map(tensors["token_map"], config["vocab_size"], target)
    return problems + verify_sizes(config, target)


def _verify_map(stored: TensorHeader, vocab_size: int, target: Mapping[str, Any] | None) -> list[Defect]:
    """Problems of a draft vocabulary of absolute ids: they must be distinct ids of the target, with its eos ids."""
    file = stored.file.name
    if stored.dtype != "I64":
        return [Defect(file, f"token_map is {stored.dtype}; servers read I64")]
    ids = np.frombuffer(stored.read(), "<i8")
    if not ids.size:
        return []  # reported as of another shape
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) != len(ids):
        return [
            Defect(
                file,
                f"token_map holds ids {ids.min()} to {ids.max()}; they must be distinct ids of the target's "
                f"{vocab_size}, not offsets",
            )
        ]
    return verify_ends(ids, file, target)


def _medusa_shapes(config: Mapping[str, Any], drafted: int) -> Shapes:
    hidden, heads = config["hidden_size"], config["num_heads"]
    shapes: Shapes = {}
    for head in range(heads):
        for layer in range(config["num_hidden_layers"]):
            shapes[f"blocks.{head}.layers.{layer}.weight"] = (hidden, hidden)
            if config.get("medusa_fc_bias", False):
                shapes[f"blocks.{head}.layers.{layer}.bias"] = (hidden,)
    if config.get("original_lm_head", False):
        shapes["lm_head.weight"] = (drafted, hidden)
    else:
        shapes.update({f"lm_heads.{head}.weight": (drafted, hidden) for head in range(heads)})
    return {**shapes, "token_map": (drafted,)} if drafted < config["vocab_size"] else shapes
