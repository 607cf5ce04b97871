"""Linear layers with quantized weights: the base class of every scheme's layer, and one that turns its weights back into floats
before each product, as servers do for weight-only schemes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from model_ops.files import TORCH_NAMES, Layout


def buffer_name(part: str) -> str:
    """The buffer of a stored tensor: names of buffers have no dots."""
    return part.replace(".", "_")


class QuantizedLinear(nn.Module, ABC):
    """Holds the tensors that its scheme stores, as buffers of the same names, and a bias. Computes what a server computes."""

    parts: tuple[str, ...]
    """Names of the stored tensors."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype, stored: Layout):
        super().__init__()
        self.in_features, self.out_features, self.parts = in_features, out_features, tuple(stored)
        for name, (kind, shape) in stored.items():
            self.register_buffer(buffer_name(name), torch.zeros(shape, dtype=getattr(torch, TORCH_NAMES[kind])))
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype) if bias else None)

    def held(self) -> dict[str, Tensor]:
        """The stored tensors."""
        return {part: getattr(self, buffer_name(part)) for part in self.parts}

    def hold(self, stored: Mapping[str, Tensor]) -> None:
        """Takes these tensors in the place of its own, without a copy."""
        for part, tensor in stored.items():
            setattr(self, buffer_name(part), tensor)

    @staticmethod
    @abstractmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        """The stored tensors of one weight, with the names, dtypes and shapes of the scheme's `stored`."""

    @staticmethod
    @abstractmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        """The weight that stored tensors stand for."""

    @abstractmethod
    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]: ...

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        """Layers over one input as a single layer; the originals become views of it. For schemes whose stored tensors all have
        the output channels as their first dimension; others join those that have."""
        return cls._joined(layers, layers[0].parts)

    @classmethod
    def _joined(cls, layers: Sequence[Self], parts: Sequence[str]) -> Self:
        """A layer with these parts (and the biases) of all layers, one after the other."""
        first, sizes = layers[0], [layer.out_features for layer in layers]
        whole = cls.__new__(cls)
        nn.Module.__init__(whole)
        whole.in_features, whole.out_features, whole.parts = first.in_features, sum(sizes), first.parts
        for name in (*parts, "bias"):
            if getattr(first, name) is None:
                whole.register_buffer(name, None)
                continue
            joined = torch.cat([getattr(layer, name) for layer in layers])
            for layer, part in zip(layers, joined.split(sizes), strict=True):
                setattr(layer, name, part)
            whole.register_buffer(name, joined)
        return whole


class DequantizedLinear(QuantizedLinear):
    """Keeps the dense weight after the first product. Subclasses say how weights are stored, and may round activations."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self._dense: Tensor | None = None

    def rounded(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens in"]:
        """The activations as the product reads them."""
        return hidden

    def decoded(self) -> Float32[Tensor, "out in"]:
        """The weight that the stored tensors stand for."""
        return self.decode(self.held())

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        if self._dense is None or self._dense.dtype != hidden.dtype or self._dense.device != hidden.device:
            self._dense = self.decoded().to(hidden.dtype)
        return nn.functional.linear(self.rounded(hidden), self._dense, self.bias)

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = super().fused(layers)
        whole._dense = None
        return whole


class PackedLinear(DequantizedLinear):
    """Codes packed into words along the inputs, with scales by output channel, and the shape of the matrix."""

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = cls._joined(layers, ("weight_packed", "weight_scale"))
        whole.register_buffer("weight_shape", torch.tensor([whole.out_features, whole.in_features]))
        whole._dense = None
        return whole
