"""A Linear layer whose weights are turned back into floats, in the activations' dtype, before each product: what servers
compute for weight-only schemes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from model_ops.quantization.quantized_linear import QuantizedLinear


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
