"""Linear layers that compute with rounded weights, activations included, and learn as if they did not ("straight-through",
arXiv 1308.3432): the gradient by the inputs is that of the rounded weights, that by the weights that of the unrounded
inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from model_ops.quantization.quantized_linear import QuantizedLinear
from model_ops.quantization.scheme import Scheme


@contextmanager
def share_codes(layers: Collection[RoundedLinear]) -> Iterator[None]:
    """Inside, layers keep their codes until an optimizer's next step has ended. Nothing else may change the weights there: the
    version counter of a parameter does not tell the updates of all optimizers."""

    def begin(shares: bool) -> None:
        for layer in layers:
            layer.shares, layer.stored = shares, None

    handle = register_optimizer_step_post_hook(lambda *_: begin(True))
    begin(True)
    try:
        yield
    finally:
        handle.remove()
        begin(False)


class RoundedLinear(nn.Linear):
    """A Linear layer whose weight is rounded in each forward. It shares weight and bias with the layer that it stands for.
    Within `share_codes`, the micro-batches and passes of a step share the codes."""

    shares = False
    stored: Mapping[str, Tensor] | None = None

    def __init__(self, layer: nn.Linear, scheme: Scheme):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias, self.scheme = layer.weight, layer.bias, scheme
        self.kind = scheme.load_layer()

    def encoded(self) -> Mapping[str, Tensor]:
        """The stored tensors of the present weight."""
        if self.stored is not None:
            return self.stored
        with torch.no_grad():
            stored = self.kind.encode(self.weight.float())
        self.stored = stored if self.shares else None
        return stored

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
    rounded = {}
    for name in modules:
        parent, _, child = name.rpartition(".")
        rounded[name] = RoundedLinear(model.get_submodule(name), scheme)
        setattr(model.get_submodule(parent), child, rounded[name])
    return rounded
