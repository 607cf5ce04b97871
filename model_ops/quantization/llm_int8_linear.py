"""LLM.int8() (arXiv 2208.07339): the layer that bitsandbytes computes, and its encoding of weights.

Weights: the float16 of each weight as int8, one float32 `SCB` per output channel, its largest absolute weight; weight = SCB *
code / 127. Activations: float16, then int8 with one scale per token. An input that holds a value of at least THRESHOLD in any
token of the call is taken out of the int8 product for all of them, and multiplied in the activations' dtype by the decoded
weights. So a token's result depends, within the rounding of int8, on the tokens that it is computed with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float, Float32, Int8
from torch import Tensor

from model_ops.errors import ModelError
from model_ops.quantization.bitsandbytes_state import THRESHOLD
from model_ops.quantization.int8_linear import int8_product
from model_ops.quantization.quantized_linear import QuantizedLinear

LARGEST_WEIGHT = torch.finfo(torch.float16).max
PER_CODES = 6.200124e-05
"""1 / 127 ** 2, to the digits of bitsandbytes."""
PER_CODE = 7.874015718698502e-3
"""1 / 127, likewise."""


def int8_rows(values: Float[Tensor, "rows width"]) -> tuple[Int8[Tensor, "rows width"], Float32[Tensor, " rows"]]:
    """Each row as int8, and its largest absolute value; a row of zeros has the codes 0."""
    largest = values.abs().amax(dim=1).float()
    factor = torch.where(largest > 0, 127.0 / largest, 0.0)
    return (values * factor[:, None]).round().to(torch.int8), largest


class LlmInt8Linear(QuantizedLinear):
    """A Linear layer with int8 weights and activations, and large activations in 16 bits; output in the activations' dtype."""

    weight: Int8[Tensor, "out in"]
    SCB: Float32[Tensor, " out"]

    @staticmethod
    def encode(weight: Float32[Tensor, "out in"]) -> dict[str, Tensor]:
        if (largest := float(weight.abs().max())) > LARGEST_WEIGHT:
            raise ModelError(f"a weight is {largest:g}, and bitsandbytes reads weights as float16, which ends at "
                             f"{LARGEST_WEIGHT:g}: choose scheme w8a8 or bnb_nf4")
        codes, largest_of_rows = int8_rows(weight.half())
        return {"weight": codes, "SCB": largest_of_rows, "weight_format": torch.zeros((), dtype=torch.uint8)}

    @staticmethod
    def decode(stored: Mapping[str, Tensor]) -> Float32[Tensor, "out in"]:
        return stored["weight"].float() * stored["SCB"][:, None] * PER_CODE

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        rows = hidden.reshape(-1, self.in_features)
        half = rows.half()
        large = half.abs() >= THRESHOLD
        inputs = large.any(dim=0).nonzero().flatten()
        codes, scale = int8_rows(half.masked_fill(large, 0))
        codes[:, inputs] = 0
        output = int8_product(codes, self.weight).float() * (scale[:, None] * self.SCB[None]) * PER_CODES
        if self.bias is not None:
            output = output + self.bias
        output = output.to(hidden.dtype)
        if len(inputs):
            weight = self.decode({"weight": self.weight[:, inputs], "SCB": self.SCB})
            output = output.addmm(rows[:, inputs], weight.to(hidden.dtype).T)
        return output.view(*hidden.shape[:-1], self.out_features)

    @classmethod
    def fused(cls, layers: Sequence[Self]) -> Self:
        whole = cls._joined(layers, ("weight", "SCB"))
        whole.register_buffer("weight_format", layers[0].weight_format)
        return whole
