"""FP8 key-value cache: keys and values as float8 (e4m3) with one scale each for every layer, as servers store them.

    layers = cache_layers(matrices)                       # attention modules, by their names in the checkpoint
    watch_cache(model, layers, change)                    # change(layer, keys, values) -> what the cache holds of them

Scales are `k_scale` and `v_scale` beside the attention's matrices, scale = absmax / 448 over calibration rows. vLLM and SGLang
read these names where config.json has a kv_cache_scheme, and store keys after their rotation.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model_ops.jobs import ModelError
from model_ops.quantization.fp8_linear import LARGEST

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
