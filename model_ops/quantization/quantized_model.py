"""Loads quantized directories as models whose quantized layers compute what a server computes.

model = load_quantized(Path("models/quantized"))     # a Hugging Face model with a scheme's own Linear layers
"""

import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from model_ops.families import attention_with_cache, stays_float32
from model_ops.files import TensorFileError, read_directory
from model_ops.jobs import ModelError
from model_ops.quantization.kv_cache import SCALES, cache_layers, round_cache
from model_ops.quantization.model_layers import BlockLayers, block_layers
from model_ops.quantization.quantized_linear import QuantizedLinear, buffer_name
from model_ops.quantization.registry import Quantization, quantization_of
from model_ops.quantization.separate_experts import Expert, SeparateExperts


def is_quantized(directory: Path) -> bool:
    """Whether a model directory's config announces quantized weights."""
    return "quantization_config" in json.loads((directory / "config.json").read_text())


def load_quantized(directory: Path, dtype: torch.dtype | None = None, attention: str = "sdpa") -> nn.Module:
    """A model with the scheme's layers in its blocks, for forward, hidden states and cached generation.

    dtype: of all tensors that are not quantized (default: the config's). Raises ModelError if the directory is not quantized
    by a known scheme, has a layout that is not known, or lacks a tensor.
    """
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
