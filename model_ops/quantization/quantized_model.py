"""Loads quantized directories as models whose quantized layers, and the key-value cache, compute what a server computes."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model_ops.families import attention_with_cache, stays_float32
from model_ops.files import TensorFileError, read_directory
from model_ops.jobs import ModelError
from model_ops.quantization.fp8_linear import LARGEST
from model_ops.quantization.model_layers import BlockLayers, Expert, SeparateExperts, block_layers
from model_ops.quantization.quantized_linear import QuantizedLinear, buffer_name
from model_ops.quantization.schemes import Quantization, quantization_of

KEYS = ("k_proj", "qkv_proj")
"""Last parts of the names of layers that compute keys."""
SCALES = ("k_scale", "v_scale")
Change = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]]


def cache_layers(layers: Iterable[str]) -> list[str]:
    """The attention modules of a model, by the names of its matrices. Raises ModelError if none caches keys by heads."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in layers if name.rpartition(".")[2] in KEYS))
    if not modules:
        raise ModelError(
            "no layer caches keys and values by heads, so the cache cannot be quantized: leave quantize.kv_cache out"
        )
    return modules


def watch_cache(model: nn.Module, layers: Iterable[str], change: Change) -> list[RemovableHandle]:
    """Puts `change` between every attention and its cache, also where the model is called without one."""
    hooks = []
    for name in layers:

        def given_cache(module: nn.Module, given: tuple, named: dict, name: str = name) -> tuple[tuple, dict]:
            inner = named.get("past_key_values")
            return given, {**named, "past_key_values": _Between(inner, lambda keys, values: change(name, keys, values))}

        hooks.append(model.get_submodule(name).register_forward_pre_hook(given_cache, with_kwargs=True))
    return hooks


class _Between:
    """Stands for a transformers cache in one call of an attention module. inner: that cache, or None."""

    def __init__(self, inner: Any, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]):
        self.inner, self.change = inner, change

    def update(self, keys: Tensor, values: Tensor, *more: object, **named: object) -> tuple[Tensor, Tensor]:
        keys, values = self.change(keys, values)
        return (keys, values) if self.inner is None else self.inner.update(keys, values, *more, **named)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def round_fp8(values: Float[Tensor, "*shape"], scale: float) -> Float[Tensor, "*shape"]:
    """The values that float8 codes of one scale stand for; what is beyond the range is cut off."""
    codes = (values.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(values.dtype)


def round_cache(model: nn.Module, scales: Mapping[str, tuple[float, float]]) -> None:
    """The model computes with keys and values as an FP8 cache holds them. scales: attention module -> (of keys, of values)."""

    def change(name: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return round_fp8(keys, scales[name][0]), round_fp8(values, scales[name][1])

    watch_cache(model, scales, change)
    model.rounds_cache = True  # read by model_ops.decoding.runner


def is_quantized(directory: Path) -> bool:
    """Whether a model directory's config announces quantized weights."""
    return "quantization_config" in json.loads((directory / "config.json").read_text())


def load_quantized(directory: Path, dtype: torch.dtype | None = None, attention: str = "sdpa") -> nn.Module:
    """A model with the scheme's layers in its blocks, for forward, hidden states and cached generation. dtype: of all tensors
    that are not quantized (default: the config's). Raises ModelError if the directory is not quantized by a known scheme, has a
    layout that is not known, or lacks a tensor."""
    from transformers import AutoConfig, AutoModelForCausalLM

    quantization = _quantization(directory)
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    dtype = dtype or getattr(config, "dtype", None) or torch.bfloat16
    if attention == "sdpa":
        attention = attention_with_cache(config)
    del config.quantization_config  # transformers would load the layers its own way
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        try:
            blocks = block_layers(model)
        except ModelError as error:
            raise ModelError(f"{directory}: {error}") from error
        layers, names = _put_layers(model, quantization, dtype, blocks, directory)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if quantization.covers("lm_head") and not tied:
        raise ModelError(
            f"{directory}: quantization_config does not leave out lm_head, and only layers of blocks are read "
            "quantized: add lm_head to its ignore list, or quantize the model again"
        )
    state = _read(model, directory, dtype, layers, names, tied)
    for name, tensor in model.state_dict().items():
        if name not in tied and (name not in state or state[name].shape != tensor.shape):
            defect = "is missing" if name not in state else f"is {list(state[name].shape)}"
            raise ModelError(
                f"{directory}: {name} {defect}, the config asks for {list(tensor.shape)}: quantize the model again"
            )
    model.load_state_dict(state, strict=False, assign=True)
    if quantization.cache:
        round_cache(model, _cache_scales(blocks, state, directory))
    model.tie_weights()
    _materialize_computed(model, config)
    return model.eval().requires_grad_(False)


def _cache_scales(blocks: BlockLayers, state: dict[str, Tensor], directory: Path) -> dict[str, tuple[float, float]]:
    """Attention module -> scales of its keys and values."""
    scales = {}
    for name in cache_layers(blocks.matrices):
        missing = [part for part in SCALES if f"{name}.{part}" not in state]
        if missing:
            raise ModelError(
                f"{directory}: {name}.{missing[0]} is missing, which the kv_cache_scheme of its config.json asks "
                "for: quantize the model again"
            )
        scales[name] = tuple(state[f"{name}.{part}"].float().item() for part in SCALES)
    return scales


def _quantization(directory: Path) -> Quantization:
    try:
        quantization = quantization_of(json.loads((directory / "config.json").read_text()))
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from error
    if quantization is None:
        raise ModelError(f"{directory} is not quantized: its config.json has no quantization_config")
    return quantization


def _put_layers(
    model: nn.Module, quantization: Quantization, dtype: torch.dtype, blocks: BlockLayers, directory: Path
) -> tuple[dict[str, QuantizedLinear], dict[str, str]]:
    """Replaces the layers that are quantized. Returns them by name, and the names of the model by those of the checkpoint where
    the two differ (layers and tensors)."""
    layers, names = {}, dict(blocks.renamed)

    def layer_of(name: str, bias: bool) -> QuantizedLinear:
        (out_features, in_features), scheme = blocks.matrices[name], quantization.scheme_of(name)
        if scheme is None:
            raise ValueError(f"{name} is not quantized")
        return scheme.load_layer()(in_features, out_features, bias, dtype, scheme.stored(out_features, in_features))

    def float_layer(name: str) -> nn.Linear:
        out_features, in_features = blocks.matrices[name]
        return nn.Linear(in_features, out_features, bias=False, dtype=dtype)

    for stored, name in blocks.linear.items():
        if quantization.covers(stored):
            layers[name] = layer_of(stored, model.get_submodule(name).bias is not None)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layers[name])
            _follow(names, stored, name, layers[name])
    modules = blocks.modules
    for name, experts in blocks.experts.items():
        covered = {quantization.covers(layer) for parts in experts for layer in parts}
        if len(covered) > 1:
            raise ModelError(
                f"{directory}: the experts in {name} are not all quantized, which cannot be loaded here: quantize "
                "the model again"
            )
        make = partial(layer_of, bias=False) if covered == {True} else float_layer
        each = [Expert(*(make(layer) for layer in parts)) for parts in experts]
        model.set_submodule(name, SeparateExperts(each, model.get_submodule(name).act_fn))
        names |= {layer: modules[layer] for parts in experts for layer in parts}
        for layer in [layer for parts in experts for layer in parts] if covered == {True} else []:
            layers[modules[layer]] = model.get_submodule(modules[layer])
            _follow(names, layer, modules[layer], layers[modules[layer]])
    return layers, names


def _follow(names: dict[str, str], stored: str, module: str, layer: QuantizedLinear) -> None:
    """Notes where the tensors of a quantized layer go."""
    names[stored] = module
    names.update({f"{stored}.{part}": f"{module}.{buffer_name(part)}" for part in layer.parts})


def _read(
    model: nn.Module,
    directory: Path,
    dtype: torch.dtype,
    layers: dict[str, QuantizedLinear],
    names: dict[str, str],
    skipped: set[str],
) -> dict[str, Tensor]:
    """The directory's tensors by the model's names: those of a quantized layer in the dtype that its scheme stores, all others
    in `dtype`."""
    from safetensors import safe_open

    try:
        files = sorted({header.file for header in read_directory(directory).values()})
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    state = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for stored in tensors.keys():  # noqa: SIM118 (no mapping)
                if stored in skipped:
                    continue
                layer, _, part = stored.rpartition(".")
                name = names.get(stored) or f"{names.get(layer, layer)}.{part}"
                layer, _, buffer = name.rpartition(".")
                tensor, wanted = tensors.get_tensor(stored), torch.float32 if stays_float32(model, name) else dtype
                if part in SCALES:
                    wanted = torch.float32
                if layer in layers and buffer != "bias":
                    wanted = getattr(layers[layer], buffer).dtype
                if tensor.is_floating_point() != wanted.is_floating_point:
                    raise ModelError(
                        f"{directory}: {stored} is {tensor.dtype}, the config asks for {wanted}: quantize the model again"
                    )
                state[name] = tensor.to(wanted)
    return state


def _materialize_computed(model: nn.Module, config) -> None:
    """Buffers that are computed, not stored (rotary frequencies, scales of embeddings): build their modules again off the meta
    device."""
    for name, module in list(model.named_modules()):
        lost = [buffer for buffer, value in module.named_buffers(recurse=False) if value.is_meta]
        if not lost:
            continue
        if "rotary" in name.rpartition(".")[2]:
            rebuilt = type(module)(config=config)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, rebuilt)
        elif lost == ["embed_scale"]:  # Gemma 3: the square root of the width, which the module keeps
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
        else:
            raise ModelError(f"{config.model_type} computes {name}.{lost[0]} while it is built, which is not known here")
