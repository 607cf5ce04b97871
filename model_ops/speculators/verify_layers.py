"""Checks common to drafters (sizes, ends of text, positions, the speculators layout), and the digests of its target in a
drafter's config.json: a drafter of another revision of its target loads without an error and drafts badly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.files import TensorHeader, target_digest, tensor_files, vocabulary_digest
from model_ops.models import Defect, Shapes

WEIGHTS, VOCABULARY = "target_digest", "target_vocabulary_digest"


def stamp(directory: Path, target: Path) -> None:
    """Adds the digests of `target` to every config.json of a drafter's directory."""
    digests = {WEIGHTS: target_digest(target), VOCABULARY: vocabulary_digest(target)}
    for path in (directory / "config.json", *sorted(directory.glob("*/config.json"))):
        config = {**json.loads(path.read_text()), **{name: digest for name, digest in digests.items() if digest}}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def mismatches(config: Mapping[str, Any], target: Path) -> list[str]:
    """Evidence that a drafter was trained for another target, one sentence each; empty if it names no target."""
    sentences = []
    for name, digest, what in ((WEIGHTS, target_digest, "weights"), (VOCABULARY, vocabulary_digest, "vocabulary")):
        trained_for = config.get(name)
        if trained_for is None:
            continue
        own = digest(target)
        if own and own != trained_for:
            sentences.append(
                f"{name} is {str(trained_for)[:12]}, but the digest of the target's {what} is {own[:12]}: the "
                "drafter was trained for another revision of the target"
            )
    return sentences


NUMBERS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip

SPECULATORS_LAYOUT = "speculators"
"""Folder of the speculators layout inside a drafter's directory."""

TRAINED_WITH = "trained_with"
"""Header field of the weights' file: config values of training that no tensor's shape shows, as JSON."""


def problem(sentence: str) -> Defect:
    """A problem of config.json."""
    return Defect("config.json", sentence)


def layer_shapes(config: Mapping[str, Any], name: str, width: int | None = None) -> Shapes:
    """Shapes of a decoder layer without biases, by tensor. width: of what q, k and v read; None: the hidden size."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv, width = config["num_key_value_heads"] * head_dim, width or hidden
    shapes: Shapes = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * head_dim, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {f"{name}.{part}.weight": shape for part, shape in shapes.items()}


def verify_trained_with(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> list[Defect]:
    """Problems of a config that differs from the config of training in the weights' file. A false flag may be missing. Files of
    other tools lack the field and pass."""
    for file in {tensor.file for tensor in tensors.values()}:
        try:
            trained = json.loads(tensor_files.read_metadata(file).get(TRAINED_WITH, "{}"))
        except ValueError:
            return [Defect(file.name, f"{TRAINED_WITH} in the header of {file.name} is not JSON: copy it again")]
        for name, wanted in _mapping(trained).items():
            value = config.get(name)
            if (bool(value) if isinstance(wanted, bool) else value) != wanted:
                return [problem(f"{name} is {value!r}, the weights were trained with {wanted!r}")]
    return []


def verify_rope(config: Mapping[str, Any]) -> list[Defect]:
    """Problems of RoPE base and scaling, which two fields hold for servers with transformers 4 and 5; they must agree."""
    modern, legacy = _mapping(config.get("rope_parameters")), config.get("rope_theta")
    if legacy is None or modern.get("rope_theta", legacy) != legacy:
        own = modern.get("rope_theta")
        return [problem(f"rope_theta is {legacy!r} and rope_parameters.rope_theta {own!r}; write both, equal")]
    older = dict(_mapping(config.get("rope_scaling")))
    kinds = older.pop("rope_type", older.pop("type", "default")), modern.get("rope_type", "default")
    if modern and (kinds[0] != kinds[1] or any(modern.get(name) != value for name, value in older.items())):
        return [
            problem(
                f"rope_scaling is {config.get('rope_scaling')!r}, where servers of transformers 4 look, "
                f"and rope_parameters.rope_type {kinds[1]!r}; write both, equal"
            )
        ]
    return []


def verify_against_target(config: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[Defect]:
    """Problems of sizes and positions that are not the target's, if that is known."""
    if not isinstance(target, Mapping):
        return []
    problems = [
        problem(f"{name} is {config.get(name)}, the target's is {target.get(name)}")
        for name in ("vocab_size", "hidden_size")
        if config.get(name) != target.get(name)
    ]
    longest = target.get("max_position_embeddings")
    if type(longest) is int and config["max_position_embeddings"] < longest:
        problems.append(
            problem(
                f"max_position_embeddings is {config['max_position_embeddings']}, below the target's {longest}: long answers "
                "would be drafted badly"
            )
        )
    theta = _mapping(target.get("rope_parameters")).get("rope_theta", target.get("rope_theta"))
    if theta is not None and config.get("rope_theta") != theta:
        own = config.get("rope_theta")
        problems.append(problem(f"rope_theta is {own}, the target's is {theta}"))
    return problems


def verify_proposals(config: Mapping[str, Any]) -> list[Defect]:
    """The fields of speculators_config that servers read."""
    problems = []
    try:
        speculators = config["speculators_config"]
        tokens = speculators["proposal_methods"][0]["speculative_tokens"]
        named = speculators["verifier"]["name_or_path"]
    except (KeyError, TypeError, IndexError):
        tokens = named = None
    if type(tokens) is not int or tokens < 1:
        problems.append(problem("speculators_config names no number of speculative_tokens"))
    if not isinstance(named, str) or not named:
        problems.append(problem("speculators_config.verifier.name_or_path does not name the target"))
    return problems


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def verify_ends(ids: np.ndarray, file: str, target: Mapping[str, Any] | None) -> list[Defect]:
    """A problem for each eos id of the target outside the draft vocabulary; the last draft of answers would be rejected."""
    ends = target.get("eos_token_id") if isinstance(target, Mapping) else None
    ends = [end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int]
    return [
        Defect(file, f"the draft vocabulary does not hold {end}, an end of text of the target: no draft can end an answer")
        for end in ends
        if end not in ids
    ]


def verify_same_vocabulary(
    config: Mapping[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """Problems of a language model that drafts for another: vLLM and SGLang require vocabularies of equal size."""
    if not isinstance(target, Mapping) or config.get("vocab_size") == target.get("vocab_size"):
        return []
    sizes = f"vocab_size is {config.get('vocab_size')}, the target's is {target.get('vocab_size')}"
    return [problem(f"{sizes}: servers refuse the two together")]


def is_in_speculators_layout(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is in the speculators layout."""
    return "speculators_model_type" in config
