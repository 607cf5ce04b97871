"""Int8 W8A8 layers that compute what a server computes, and the loader of a quantized directory.

    model = load_quantized(Path("models/quantized"))     # a Hugging Face model whose Linear layers are Int8Linear

Weights: int8 [out, in] with one float32 scale per output channel, symmetric, scale = absmax / 127 (round to nearest).
Activations: int8 with one scale per token, computed when the token arrives (dynamic), symmetric. The product is an
exact int32 sum, then times both scales: the compressed-tensors "int-quantized" scheme, as vLLM and SGLang run it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float, Float32, Int8, Int32
from torch import Tensor, nn

from model_ops.errors import ModelError
from model_ops.tensor_files import TensorFileError, read_directory
from model_ops.torch_internals import int8_matmul

LINEAR_SUFFIXES = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))
"""The Linear layers of Llama, Mistral, Qwen2 and Qwen3 blocks."""

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

SMALLEST_SCALE = 1e-12
"""Scale of a channel or token that is all zeros: any positive number keeps 0 / scale at 0."""

EXACT_FLOAT32_DEPTH = 1_024
"""Longest inner dimension whose int8 products sum exactly in float32: 1,024 * 127 * 127 < 2 ** 24."""


def quantize_symmetric(values: Float[Tensor, "*rows width"]) -> tuple[Int8[Tensor, "*rows width"],
                                                                       Float32[Tensor, "*rows 1"]]:
    """Each row as int8 in [-127, 127] and its scale; |value - scale * int8| <= scale / 2."""
    values = values.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=SMALLEST_SCALE)
    return (values / scale).round_().clamp_(-127, 127).to(torch.int8), scale


def int8_product(left: Int8[Tensor, "m k"], right: Int8[Tensor, "n k"]) -> Int32[Tensor, "m n"]:
    """left @ right.T as exact int32 sums: torch's int8 kernel on CPU, else an equal sum of exact float32 products."""
    if left.device.type == "cpu":
        return int8_matmul(left, right.t())
    return int8_product_portable(left, right)


def int8_product_portable(left: Int8[Tensor, "m k"], right: Int8[Tensor, "n k"]) -> Int32[Tensor, "m n"]:
    """The same numbers on any device: float32 products over slices short enough to be exact.

    TF32 must be off on CUDA (torch's default): its 10-bit products would round.
    """
    total = torch.zeros(left.shape[0], right.shape[0], dtype=torch.int32, device=left.device)
    for start in range(0, left.shape[1], EXACT_FLOAT32_DEPTH):
        piece = slice(start, start + EXACT_FLOAT32_DEPTH)
        total += (left[:, piece].float() @ right[:, piece].float().t()).to(torch.int32)
    return total


class Int8Linear(nn.Module):
    """A Linear layer with int8 weights and per-token int8 activations; output in the activations' dtype."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(out_features, 1, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype) if bias else None)

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        flat, scale = quantize_symmetric(hidden.reshape(-1, self.in_features))
        product = int8_product(flat, self.weight).float()
        output = (product.mul_(scale).mul_(self.weight_scale.t())).to(hidden.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.view(*hidden.shape[:-1], self.out_features)


def is_quantized(directory: Path) -> bool:
    """Whether a model directory's config announces quantized weights."""
    return "quantization_config" in json.loads((directory / "config.json").read_text())


def is_block_linear(name: str) -> bool:
    """Whether a tensor is the weight of a Linear layer inside a block (lm_head and embeddings are not)."""
    return ".layers." in name and name.endswith(LINEAR_SUFFIXES)


def load_quantized(directory: Path, dtype: torch.dtype | None = None, attention: str = "sdpa") -> nn.Module:
    """A model whose block Linears are Int8Linear, for forward, hidden states and cached generation.

    dtype is that of everything but the int8 products (default: the config's own). Raises ModelError where the
    directory is not an int8 W8A8 compressed-tensors model of a known architecture, or a tensor is missing.
    """
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    check_scheme(directory, getattr(config, "quantization_config", None))
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise ModelError(f"{directory} is a {config.model_type} model; int8 layers are known for "
                         f"{', '.join(SUPPORTED_MODEL_TYPES)}")
    dtype = dtype or getattr(config, "dtype", None) or torch.bfloat16
    del config.quantization_config  # transformers would look for the compressed-tensors package
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and is_block_linear(f"{name}.weight"):
            parent, _, child = name.rpartition(".")
            with torch.device("meta"):
                replacement = Int8Linear(module.in_features, module.out_features, module.bias is not None, dtype)
            setattr(model.get_submodule(parent), child, replacement)
    try:
        headers = read_directory(directory)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    state = {}
    for file in sorted({header.file for header in headers.values()}):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                tensor = tensors.get_tensor(name)
                if name.endswith(".weight_scale"):
                    state[name] = tensor.float()
                else:
                    state[name] = tensor if tensor.dtype == torch.int8 else tensor.to(dtype)
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()
                if not (config.tie_word_embeddings and name == "lm_head.weight")}
    for name, shape in expected.items():
        if name not in state or state[name].shape != shape:
            found = "is missing" if name not in state else f"is {list(state[name].shape)}"
            raise ModelError(f"{directory}: {name} {found}, the config asks for {list(shape)}: "
                             "quantize the model again")
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    _materialize_rotary(model, config)
    return model.eval().requires_grad_(False)


def check_scheme(directory: Path, scheme: dict | None) -> None:
    """Raises ModelError unless `scheme` (a config's quantization_config) is the int8 W8A8 that Int8Linear computes."""
    if scheme is None:
        raise ModelError(f"{directory} is not quantized: its config.json has no quantization_config")
    try:
        (group,) = scheme["config_groups"].values()
        weights, activations = group["weights"], group["input_activations"]
        found = (scheme["quant_method"], scheme["format"], weights["num_bits"], weights["type"], weights["strategy"],
                 weights["symmetric"], activations["num_bits"], activations["type"], activations["strategy"],
                 activations["symmetric"], activations["dynamic"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{directory} has a quantization_config that is not int8 W8A8 in compressed-tensors layout, "
                         "the only one read here") from error
    if found != ("compressed-tensors", "int-quantized", 8, "int", "channel", True, 8, "int", "token", True, True):
        raise ModelError(f"{directory} is quantized as {found}, not as the int8 W8A8 read here")


def _materialize_rotary(model: nn.Module, config) -> None:
    """Rotary frequencies are computed, not stored: build that module again off the meta device."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config)
