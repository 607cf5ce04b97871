"""Checks a saved multi-token-prediction (MTP) layer in MiMo's format for vLLM 0.32, which takes sizes, RoPE base and
quantization from the target's config: this directory's must agree with it, and a quantized target must exclude the layer."""

from collections.abc import Mapping
from typing import Any

from model_ops.families import LAYER, takes_layer_for_quantized, unquantized_layer
from model_ops.files import TensorHeader
from model_ops.models import Defect, Shapes, verify_model
from model_ops.speculators.verify_layers import NUMBERS, layer_shapes, problem, verify_against_target, verify_rope

MTP = "MiMoForCausalLM"
"""Architecture name under which vLLM loads such a layer."""


def is_mtp(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a drafter of this kind."""
    return config.get("architectures") == [MTP] and config.get("model_type") == "qwen2"


SIZES = ("intermediate_size", "num_attention_heads", "num_key_value_heads")


def verify_mtp(
    config: Mapping[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """Problems of config against tensors, and against the target if known. vLLM requires embedding and head in the file,
    although it uses the target's."""
    problems = verify_model.missing_numbers(config, NUMBERS)
    if problems:
        return problems
    if config.get("num_nextn_predict_layers") != 1:
        problems.append(
            problem(
                f"num_nextn_predict_layers is {config.get('num_nextn_predict_layers')!r}: vLLM runs one layer "
                "again for each draft, write 1"
            )
        )
    vocabulary = (config["vocab_size"], config["hidden_size"])
    shapes: Shapes = {"model.embed_tokens.weight": vocabulary, "lm_head.weight": vocabulary, **_layer_shapes(config)}
    problems += verify_model.compare_shapes(shapes, tensors) + verify_model.verify_dtype(config, tensors) + verify_rope(config)
    if not isinstance(target, Mapping):
        return problems
    problems += [
        problem(f"{name} is {config[name]}, the target's is {target.get(name)}, by which vLLM builds the layer")
        for name in SIZES
        if config[name] != target.get(name)
    ]
    if takes_layer_for_quantized(target):
        problems.append(
            problem(
                "the target is quantized and its config.json does not say that this layer is not: vLLM would "
                "take its floats for int8 and draft badly; quantization_config.ignore must hold "
                f"{unquantized_layer(target)}"
            )
        )
    return problems + verify_against_target(config, target)


def _layer_shapes(config: Mapping[str, Any]) -> Shapes:
    name, hidden = LAYER.removesuffix("."), config["hidden_size"]
    shapes = layer_shapes(config, name)
    biases = {f"{name}.self_attn.{part}_proj.bias": shapes[f"{name}.self_attn.{part}_proj.weight"][:1] for part in "qkv"}
    norms: Shapes = {f"{LAYER}{norm}_layernorm.weight": (hidden,) for norm in ("token", "hidden", "final")}
    return {**shapes, **biases, **norms, f"{LAYER}input_proj.weight": (hidden, 2 * hidden)}
