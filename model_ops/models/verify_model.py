"""Checks a model directory: tensors against config.json, and the files that a server needs."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.families import FAST
from model_ops.files import TensorHeader, template_files
from model_ops.jobs import ModelError
from model_ops.quantization import Quantization, quantization_of

FLOAT_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
ALWAYS_FLOAT32 = ("e_score_correction_bias",)
"""Ends of the names of tensors that are float32 whatever the dtype of the weights (DeepSeek-V3, GLM-4-MoE)."""
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Defect:
    """One problem: its file, and a sentence for the person who can fix it."""

    file: str
    sentence: str
    breaks_loading: bool = False
    """Whether no loader can make the model that config.json describes."""

    def __str__(self) -> str:
        return self.sentence


def verify_weights(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> list[Defect]:
    """Problems of the tensors against config.json: names, shapes, vocabulary, tied head, dtype, quantized layout."""
    by_names = config.get("model_type") in FAST
    if not by_names and not tensors:
        return []  # whoever reads the directory says so
    numbers = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    )
    problems = missing_numbers(config, numbers if by_names else ())
    if problems:
        return problems
    try:
        quantization = quantization_of(config)
        expected, matrices = (_fast_shapes if by_names else _shapes_of_transformers)(config)
    except ModelError as error:
        return [Defect("config.json", str(error))]
    tied = ("lm_head.weight" in tensors and "lm_head.weight" not in expected) or bool(config.get("tie_word_embeddings"))
    if tied and "model.embed_tokens.weight" in expected:
        expected.setdefault("lm_head.weight", expected["model.embed_tokens.weight"])
    if quantization is not None:
        expected, problems = _verify_encoded(quantization, expected, matrices, tensors)
    optional = {"lm_head.weight"} if tied else set()
    mismatches = compare_shapes(expected, tensors, optional)
    if not by_names and quantization is None and any(name not in expected for name in tensors):
        # another layout, which transformers may convert while loading: the import loads the model and decides
        mismatches = [replace(problem, breaks_loading=False) for problem in mismatches]
    problems += mismatches
    head, embedding = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    if tied and head is not None and embedding is not None and head.read() != embedding.read():
        problems.append(
            Defect(
                "model.safetensors",
                "config.json ties lm_head to the embedding, but lm_head.weight "
                "is stored with other values: one of them is wrong",
                True,
            )
        )
    return problems + verify_dtype(config, tensors)


LINEAR_SUFFIXES = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))
"""Ends of the names of the Linear weights in the blocks of Llama, Mistral, Qwen2 and Qwen3."""


def _fast_shapes(config: Mapping[str, Any]) -> tuple[Shapes, set[str]]:
    """(shape of every tensor, names of the matrices that schemes of quantization encode), without importing torch."""
    shapes = expected_shapes(config)
    return shapes, {name for name in shapes if ".layers." in name and name.endswith(LINEAR_SUFFIXES)}


def _shapes_of_transformers(config: Mapping[str, Any]) -> tuple[Shapes, set[str]]:
    """The same for any family, from a model that transformers builds without values."""
    from model_ops.quantization import block_layers, model_of_config

    layers = block_layers(model_of_config(config))
    return dict(layers.tensors), {f"{layer}.weight" for layer in layers.matrices}


def missing_numbers(config: Mapping[str, Any], names: tuple[str, ...]) -> list[Defect]:
    """A problem for each name that is not a positive whole number in the config; names with a default may be missing."""
    names += tuple(name for name in ("head_dim", "num_key_value_heads") if config.get(name) is not None and name not in names)
    return [
        Defect("config.json", f"config.json has {name} = {config.get(name)!r}, not a positive whole number")
        for name in names
        if type(config.get(name)) is not int or config[name] < 1
    ]


def expected_shapes(config: Mapping[str, Any]) -> Shapes:
    """Name and shape of every tensor that a Llama, Mistral, Qwen2 or Qwen3 config requires."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    kind = config["model_type"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    sizes = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        for name, size in sizes.items():
            shapes[f"{block}.self_attn.{name}_proj.weight"] = (size, hidden)
            if kind == "qwen2" or config.get("attention_bias"):
                shapes[f"{block}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{block}.self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        if config.get("attention_bias") and kind != "qwen2":
            shapes[f"{block}.self_attn.o_proj.bias"] = (hidden,)
        if kind == "qwen3":
            shapes[f"{block}.self_attn.q_norm.weight"] = shapes[f"{block}.self_attn.k_norm.weight"] = (head_dim,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"{block}.mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                shapes[f"{block}.mlp.{name}_proj.bias"] = (shape[0],)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{block}.{name}.weight"] = (hidden,)
    return shapes


def compare_shapes(expected: Shapes, tensors: Mapping[str, TensorHeader], optional: Collection[str] = ()) -> list[Defect]:
    """A problem for each tensor that is missing, of another shape, or unexpected."""
    problems = []
    for name, shape in expected.items():
        if name not in tensors:
            if name not in optional:
                problems.append(Defect("model.safetensors", f"tensor {name} is missing, config.json requires it", True))
        elif tensors[name].shape != shape:
            shape_here = list(tensors[name].shape)
            problems.append(
                Defect(tensors[name].file.name, f"tensor {name} is {shape_here}, config.json requires {list(shape)}", True)
            )
    problems += [
        Defect(tensors[name].file.name, f"tensor {name} is not described by config.json")
        for name in tensors
        if name not in expected
    ]
    return problems


def verify_dtype(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> list[Defect]:
    """A problem if float weights, except quantization scales, are not in the dtype that the config names."""
    named = config.get("dtype") or config.get("torch_dtype")
    if not isinstance(named, str) or named not in FLOAT_NAMES:
        return [Defect("config.json", f"config.json has dtype {named!r}, not one of {', '.join(FLOAT_NAMES)}")]
    for name, tensor in tensors.items():
        odd = tensor.dtype in FLOAT_NAMES.values() and tensor.dtype != FLOAT_NAMES[named]
        if odd and not name.endswith(("_scale", *ALWAYS_FLOAT32)):
            return [Defect(tensor.file.name, f"tensor {name} is {tensor.dtype}, config.json says {named}")]
    return []


def _verify_encoded(
    quantization: Quantization, expected: Shapes, matrices: set[str], tensors: Mapping[str, TensorHeader]
) -> tuple[Shapes, list[Defect]]:
    """The shapes expected of a quantized directory, and what is wrong with the dtypes and scales of its tensors."""
    shapes: Shapes = {}
    problems = []
    if quantization.covers("lm_head"):
        problems.append(
            Defect(
                "config.json",
                "quantization_config does not leave out lm_head, whose weights are floats: add lm_head to its ignore list",
            )
        )
    for name, shape in expected.items():
        layer = name.removesuffix(".weight")
        scheme = quantization.scheme_of(layer) if name in matrices else None
        if scheme is None:
            shapes[name] = shape
            continue
        for part, (dtype, size) in scheme.stored(*shape).items():
            stored = f"{layer}.{part}"
            shapes[stored] = size
            tensor = tensors.get(stored)
            if tensor is None:
                continue
            if part.endswith("_scale"):
                values = float_values(tensor)
                if values is None or not (np.isfinite(values).all() and (values > 0).all()):
                    problems.append(Defect(tensor.file.name, f"tensor {stored} must be positive finite floats"))
            elif tensor.dtype != dtype:
                problems.append(
                    Defect(tensor.file.name, f"tensor {stored} is {tensor.dtype}, the quantized layout asks {dtype}")
                )
    if quantization.cache:
        for layer in {
            name.rpartition(".")[0].rpartition(".")[0]
            for name in matrices
            if name.endswith((".k_proj.weight", ".qkv_proj.weight"))
        }:
            for part in ("k_scale", "v_scale"):
                shapes[f"{layer}.{part}"] = (1,)
                values = float_values(tensors[f"{layer}.{part}"]) if f"{layer}.{part}" in tensors else None
                if values is not None and not (np.isfinite(values).all() and (values > 0).all()):
                    problems.append(Defect(tensors[f"{layer}.{part}"].file.name, f"tensor {layer}.{part} must be positive"))
    return shapes, problems


def float_values(tensor: TensorHeader) -> np.ndarray | None:
    """A float tensor's values as float32; None for other dtypes."""
    data = tensor.read()
    if tensor.dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
    return np.frombuffer(data, kinds[tensor.dtype]).astype(np.float32) if tensor.dtype in kinds else None


def verify_files_to_serve(directory: Path, config: Mapping[str, Any]) -> list[Defect]:
    """Problems of tokenizer, chat template and eos ids: missing, invalid, or outside the vocabulary."""
    problems: list[Defect] = []
    vocab_size = config.get("vocab_size")
    known: set[int] = set()
    try:
        tokenizer = json.loads((directory / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        known = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
        known |= {token["id"] for token in tokenizer.get("added_tokens", [])}
    except FileNotFoundError:
        problems.append(Defect("tokenizer.json", "tokenizer.json is missing: copy the target's tokenizer into the directory"))
    except (ValueError, KeyError, TypeError, AttributeError):
        problems.append(Defect("tokenizer.json", "tokenizer.json holds no valid vocabulary: copy it again"))
    if known and type(vocab_size) is int and max(known) >= vocab_size:
        problems.append(Defect("tokenizer.json", f"the tokenizer has id {max(known)}, config.json has vocab_size {vocab_size}"))
    if not template_files.chat_templates(directory):
        problems.append(Defect("chat_template.jinja", "no chat template: put chat_template.jinja into the directory"))
    try:
        ends = json.loads((directory / "generation_config.json").read_text()).get("eos_token_id")
    except FileNotFoundError:
        return [
            *problems,
            Defect("generation_config.json", "generation_config.json is missing: servers then guess where answers end"),
        ]
    except (ValueError, AttributeError):
        return [*problems, Defect("generation_config.json", "generation_config.json is not a JSON object")]
    ends = ends if isinstance(ends, list) else [ends]
    for end in ends:
        if type(end) is not int or (type(vocab_size) is int and not 0 <= end < vocab_size):
            problems.append(Defect("generation_config.json", f"eos_token_id {end!r} is not in the vocabulary"))
        elif known and end not in known:
            problems.append(Defect("generation_config.json", f"eos_token_id {end} is not a token of tokenizer.json"))
    return problems
