"""Linear layers that compute with rounded weights and learn as if they did not ("straight-through", Bengio et al., arXiv
1308.3432).

    compute_rounded(model, ["model.layers.0.mlp.up_proj"], scheme)      # in place; parameters keep their names

Forward is what the scheme's own layer computes, activations included. Backward takes rounding for the identity: the gradient by
the inputs is that of the rounded weights, the gradient by the weights that of the unrounded inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_ops.quantization.quantized_linear import QuantizedLinear
from model_ops.quantization.scheme import Scheme


class RoundedLinear(nn.Linear):
    """A Linear layer whose weight is rounded in each forward. It shares weight and bias with the layer that it stands for."""

    def __init__(self, layer: nn.Linear, scheme: Scheme):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias, self.scheme = layer.weight, layer.bias, scheme
        self.kind = scheme.load_layer()

    def encoded(self) -> dict[str, Tensor]:
        """The stored tensors of the present weight."""
        return self.kind.encode(self.weight.detach().float())

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            stored = self.encoded()
            change = self.kind.decode(stored).to(self.weight.dtype) - self.weight
        output = F.linear(hidden, self.weight + change, self.bias)
        if self.scheme.activations is None:
            return output
        with torch.no_grad():
            layer = served_layer(self.scheme, stored, (self.out_features, self.in_features), self.bias, output.dtype)
            change = layer(hidden.to(output.dtype)) - output
        return output + change


def served_layer(
    scheme: Scheme, stored: Mapping[str, Tensor], shape: tuple[int, int], bias: Tensor | None, dtype: torch.dtype
) -> QuantizedLinear:
    """The scheme's own layer with these tensors. shape: (out_features, in_features). dtype: of the bias."""
    with torch.device("meta"):
        layer = scheme.load_layer()(shape[1], shape[0], bias is not None, dtype, scheme.stored(*shape))
    layer.hold(stored)
    layer.bias = None if bias is None else bias.detach().to(dtype)
    return layer


def compute_rounded(model: nn.Module, modules: Iterable[str], scheme: Scheme) -> dict[str, RoundedLinear]:
    """Replaces Linear modules by rounded ones. Returns these by name."""
    found = {}
    for name in modules:
        parent, _, child = name.rpartition(".")
        found[name] = RoundedLinear(model.get_submodule(name), scheme)
        setattr(model.get_submodule(parent), child, found[name])
    return found
