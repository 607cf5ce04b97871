"""Checks saved MEDUSA heads and MLP speculators for vLLM and TGI.

vLLM takes any key of a MEDUSA config that holds `num` and `heads` or `layers` for the number of heads or of residual
layers. vLLM 0.32 loads no draft vocabulary of MEDUSA heads. vLLM refuses an MLP speculator's config whose
top_k_tokens_per_head does not have one number per step; output matrices that steps share are written once per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_ops.models.verify_model import Problem, Shapes, compare_shapes, missing_numbers, verify_dtype
from model_ops.tensor_files import TensorHeader


def verify_medusa(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader],
                  target: Mapping[str, Any] | None = None) -> list[Problem]:
    """A directory of MEDUSA heads: config against tensors, vocabulary map, and the target if known."""
    problems = missing_numbers(config, ("hidden_size", "vocab_size", "num_heads", "num_hidden_layers"))
    drafted = config.get("truncated_vocab_size") or config.get("vocab_size")
    if problems or type(drafted) is not int:
        return problems or [Problem("config.json", f"truncated_vocab_size is {drafted!r}, not a whole number")]
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in tensors.items()}
    problems = compare_shapes(_medusa_shapes(config, drafted), tensors) + verify_dtype(config, tensors)
    problems += [Problem("config.json", f"{name} would be read by vLLM as the number of {kind}: leave it out")
                 for kind, meant in (("heads", "num_heads"), ("layers", "num_hidden_layers"))
                 for name in config if "num" in name and kind in name and name != meant]
    if drafted < config["vocab_size"] and not config.get("original_lm_head", False):
        problems.append(Problem("config.json", f"truncated_vocab_size is {drafted} and original_lm_head is not true: vLLM "
                                               "takes heads of their own with the whole vocabulary only"))
    if drafted < config["vocab_size"]:
        problems.append(Problem("config.json", f"truncated_vocab_size is {drafted}: vLLM 0.32 refuses to load a draft "
                                               "vocabulary of MEDUSA heads, train them with the whole one"))
    if "token_map" in tensors and drafted < config["vocab_size"]:
        problems += verify_ids(drafted_ids(tensors), tensors["token_map"], config["vocab_size"], target)
    return problems + _against_target({"hidden_size": config["hidden_size"], "vocab_size": config["vocab_size"]}, target)


def verify_mlp(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader],
               target: Mapping[str, Any] | None = None) -> list[Problem]:
    """A directory of an MLP speculator: config against tensors, and the target if known."""
    problems = missing_numbers(config, ("emb_dim", "vocab_size", "n_predict"))
    inner = config.get("inner_dim") or config.get("emb_dim")
    if problems or type(inner) is not int:
        return problems or [Problem("config.json", f"inner_dim is {inner!r}, not a whole number")]
    steps, tied = config["n_predict"], config.get("tie_weights", False)
    tensors = {name.removeprefix("speculator."): tensor for name, tensor in tensors.items()}
    shapes, optional = _mlp_shapes(config, inner)
    problems = compare_shapes(shapes, tensors, optional) + verify_dtype(config, tensors)
    ranks = config.get("top_k_tokens_per_head")
    if not isinstance(ranks, list) or len(ranks) != steps:
        problems.append(Problem("config.json", f"top_k_tokens_per_head is {ranks!r}; vLLM asks for a number for each of the "
                                               f"{steps} steps of n_predict"))
    if tied and steps == 1:
        problems.append(Problem("config.json", "tie_weights is true and n_predict 1: there is nothing to tie"))
    heads = [tensors[name] for step in range(steps) if (name := f"head.{step}.weight") in tensors]
    if tied and not problems and any(head.read() != heads[0].read() for head in heads[1:]):
        problems.append(Problem("model.safetensors", "tie_weights is true and the output matrices of the steps differ"))
    return problems + _against_target({"emb_dim": config["emb_dim"], "vocab_size": config["vocab_size"]}, target)


def drafted_ids(tensors: Mapping[str, TensorHeader]) -> np.ndarray:
    """The target's ids of MEDUSA's draft vocabulary; empty if token_map has a dtype that servers do not read."""
    stored = tensors["token_map"]
    return np.frombuffer(stored.read(), "<i8") if stored.dtype == "I64" else np.empty(0, np.int64)


def verify_ids(ids: np.ndarray, stored: TensorHeader, vocab_size: int, target: Mapping[str, Any] | None) -> list[Problem]:
    """Problems of a draft vocabulary of absolute ids: they must be distinct ids of the target, with its eos ids."""
    file = stored.file.name
    if not len(ids):
        return [Problem(file, f"token_map is {stored.dtype}; servers read I64")]
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) != len(ids):
        return [Problem(file, f"token_map holds ids {ids.min()} to {ids.max()}; they must be distinct ids of the target's "
                              f"{vocab_size}, not offsets")]
    return verify_ends(ids, file, target)


def verify_ends(ids: np.ndarray, file: str, target: Mapping[str, Any] | None) -> list[Problem]:
    """A problem for each eos id of the target outside the draft vocabulary; the last draft of answers would be rejected."""
    ends = target.get("eos_token_id") if isinstance(target, Mapping) else None
    ends = [end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int]
    return [Problem(file, f"the draft vocabulary does not hold {end}, an end of text of the target: no draft can end an "
                          "answer") for end in ends if end not in ids]


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


def _mlp_shapes(config: Mapping[str, Any], inner: int) -> tuple[Shapes, set[str]]:
    """(shape of every tensor, names that are optional with tied steps)."""
    vocab, steps, tied = config["vocab_size"], config["n_predict"], config.get("tie_weights", False)
    shapes: Shapes = {}
    for step in range(steps):
        shapes[f"emb.{step}.weight"] = (vocab, inner)
        shapes[f"proj.{step}.weight"] = (inner, inner if step else config["emb_dim"])
        shapes[f"ln.{step}.weight"] = shapes[f"ln.{step}.bias"] = (inner,)
        shapes[f"head.{step}.weight"] = (vocab, inner)
    optional = {name for name in shapes if tied and int(name.split(".")[1]) > ("proj" in name) and "head" not in name}
    return shapes, optional


def _against_target(named: Mapping[str, int], target: Mapping[str, Any] | None) -> list[Problem]:
    if not isinstance(target, Mapping):
        return []
    of_target = {"emb_dim": target.get("hidden_size"), **target}
    return [Problem("config.json", f"{name} is {value}, the target's is {of_target.get(name)}")
            for name, value in named.items() if value != of_target.get(name)]
