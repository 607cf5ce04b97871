"""QLoRA (arXiv 2305.14314): frozen nf4 weights under trained adapters, in blocks of 64 with double quantization of scales, by
bitsandbytes. Codes are plain buffers, so they are saved and moved like any other and not sharded. Merging adds the update to
the dequantized weight, so the merged model computes the trained function."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from model_ops.adapters.lora import LoraLinear, adapted_layers
from model_ops.jobs import ModelError

BLOCK, NESTED_BLOCK = 64, 256
PARTS = ("codes", "scales", "offset", "nested_scales")


@lru_cache(maxsize=1)
def nf4_layers() -> type[Nf4LoraLinear]:
    """The layer class for `add_adapters`. Raises ModelError if bitsandbytes is not installed."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "method: qlora needs bitsandbytes, which is not installed: pip install 'millrace[qlora]'; "
            "method: lora needs nothing more"
        ) from error
    return Nf4LoraLinear


class Nf4LoraLinear(LoraLinear):
    """A linear layer with an adapter whose frozen weight is nf4."""

    codes: Tensor
    scales: Tensor
    offset: Tensor
    nested_scales: Tensor

    def take(self, linear: nn.Linear) -> None:
        from bitsandbytes.functional import quantize_4bit

        weight = linear.weight.detach()
        if weight.numel() % BLOCK:
            raise ModelError(
                f"a linear layer of {self.out_features} x {self.in_features} does not divide into nf4 blocks of "
                f"{BLOCK} weights; leave it out of lora.targets, or use method: lora"
            )
        codes, state = quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
        self.register_parameter("weight", None)
        self.bias = linear.bias
        for name, part in zip(PARTS, (codes, state.absmax, state.offset, state.state2.absmax), strict=True):
            self.register_buffer(name, part)
        difference = self.frozen(torch.float32) - weight.float()
        self.squared_error, self.squared_size = float(difference.square().sum()), float(weight.float().square().sum())

    def frozen(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        from bitsandbytes.functional import QuantState, dequantize_4bit

        nf4, nested = _tables(self.codes.device)
        # As rows of one block each: bitsandbytes 0.50.2 gives wrong values on a CPU if a block spans rows of the weight
        state = QuantState(
            absmax=self.scales,
            shape=torch.Size((self.codes.numel() * 2 // BLOCK, BLOCK)),
            code=nf4,
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=dtype,
            offset=self.offset,
            state2=QuantState(absmax=self.nested_scales, code=nested, blocksize=NESTED_BLOCK, dtype=torch.float32),
        )
        return dequantize_4bit(self.codes, state).view(self.out_features, self.in_features)


def quantization_error(model: nn.Module) -> float:
    """Relative error of the 4-bit weights against the original ones (Frobenius norms over all layers)."""
    layers = [layer for layer in adapted_layers(model).values() if isinstance(layer, Nf4LoraLinear)]
    size = sum(layer.squared_size for layer in layers)
    return math.sqrt(sum(layer.squared_error for layer in layers) / size) if size else 0.0


def quantized_parameters(model: nn.Module) -> int:
    """Number of weights in 4 bits."""
    return sum(
        layer.in_features * layer.out_features for layer in adapted_layers(model).values() if isinstance(layer, Nf4LoraLinear)
    )


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Lookup tables: values of the 4-bit codes, and values of the 8-bit codes of their scales."""
    from bitsandbytes.functional import create_dynamic_map, get_4bit_type

    return get_4bit_type("nf4", device=device), create_dynamic_map().to(device)
