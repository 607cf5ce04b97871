"""Adapters that are added to a weight before it is rounded: LoRA (arXiv 2106.09685) through straight-through rounding.

    compute_rounded_sums(model, ["model.layers.0.mlp.up_proj"], scheme, LoraSettings(rank=16))      # in place; only A, B learn
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from model_ops.models.lora import LoraLinear
from model_ops.models.lora_settings import LoraSettings
from model_ops.quantization.scheme import Scheme
from model_ops.quantization.straight_through import served_layer


class RoundedLoraLinear(LoraLinear):
    """A Linear layer with an adapter, whose sum W + scaling B A is rounded in each forward. Only A and B learn.

    The backward pass rounds again instead of keeping rounded weights, and the gradient of the weight is never whole: memory is
    that of an adapter.
    """

    scheme: Scheme

    def encoded(self) -> dict[str, Tensor]:
        """The stored tensors of the present sum of weight and adapter."""
        with torch.no_grad():
            return self.scheme.load_layer().encode(self.weight.float() + self.update())

    def rounded(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The weight that the present codes stand for."""
        return self.scheme.load_layer().decode(self.encoded()).to(dtype)

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        with torch.autocast(kind, enabled=False):
            output = _RoundedProduct.apply(hidden.to(dtype).reshape(-1, self.in_features), self.lora_A, self.lora_B, self)
        return output.view(*hidden.shape[:-1], self.out_features)


class _RoundedProduct(torch.autograd.Function):
    """The product with rounded weights; A and B learn as if their sum with the weight was not rounded."""

    @staticmethod
    def forward(ctx, rows: Tensor, down: Tensor, up: Tensor, layer: RoundedLoraLinear) -> Tensor:
        ctx.save_for_backward(rows, down, up)
        ctx.layer = layer
        if layer.scheme.activations is not None:
            shape = layer.out_features, layer.in_features
            return served_layer(layer.scheme, layer.encoded(), shape, layer.bias, rows.dtype)(rows)
        return F.linear(rows, layer.rounded(rows.dtype), None if layer.bias is None else layer.bias.to(rows.dtype))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        rows, down, up = ctx.saved_tensors
        layer, dtype = ctx.layer, gradient.dtype
        of_low = layer.scaling * (gradient @ up.to(dtype))
        of_down = (of_low.T @ rows.to(dtype)).to(down.dtype)
        of_up = layer.scaling * (gradient.T @ (rows.to(dtype) @ down.to(dtype).T)).to(up.dtype)
        of_rows = (gradient @ layer.rounded(dtype)).to(rows.dtype) if ctx.needs_input_grad[0] else None
        return of_rows, of_down, of_up, None


def compute_rounded_sums(model: nn.Module, modules: Iterable[str], scheme: Scheme, adapters: LoraSettings,
                         seed: int = 0) -> dict[str, RoundedLoraLinear]:
    """Replaces Linear modules by rounded ones with adapters. The same seed draws the same adapters on every device. Returns
    the layers by name."""
    found, generator = {}, torch.Generator().manual_seed(seed)
    for name in modules:
        parent, _, child = name.rpartition(".")
        found[name] = RoundedLoraLinear.over(model.get_submodule(name), adapters, generator)
        found[name].scheme = scheme
        setattr(model.get_submodule(parent), child, found[name])
    return found
