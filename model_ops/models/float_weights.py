"""Computes bfloat16 weights from quantized ones, one tensor at a time: MXFP4 by transformers' conversion (OCP Microscaling
1.0), FP8 and compressed-tensors by scales, bitsandbytes' 4 bits by a table of 16 values and absmax of a block (arXiv
2305.14314), its int8 by the absmax of a row / 127 (arXiv 2208.07339)."""

from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from model_ops.files import TORCH_NAMES, TensorHeader, renamed_when_complete, write_stream
from model_ops.jobs import ModelError, Progress
from model_ops.models.quantized_base import FloatForm, TensorSource

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Floats of four bits (OCP Microscaling 1.0, table 5) without their sign, which is the highest bit."""


def write_float_weights(form: FloatForm, path: Path, progress: Progress) -> int:
    """Writes the float form of a quantized checkpoint; returns bytes written. Memory holds one tensor and its parts."""

    def tensors() -> Iterator[tuple[str, bytes]]:
        for done, (name, (dtype, shape)) in enumerate(form.layout.items(), start=1):
            value = float_weight(form.sources[name])
            if tuple(value.shape) != tuple(shape) or not torch.isfinite(value).all():
                raise ModelError(
                    f"{name} of the base model has quantized values or scales that are damaged: copy the model again"
                )
            value = value.to(getattr(torch, TORCH_NAMES[dtype])).contiguous()
            yield name, value.flatten().view(torch.uint8).numpy().tobytes()
            progress.stop_if_requested()
            progress.report("dequantize", done, len(form.layout), "tensors")

    with renamed_when_complete(path) as temporary:
        return write_stream(temporary, form.layout, tensors())


def float_weight(source: TensorSource) -> Tensor:
    """The float tensor that stored parts stand for."""
    parts = {role: _read(header) for role, header in source.parts.items()}
    if source.kind == "plain":
        return parts["value"]
    if source.kind == "mxfp4":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        return convert_moe_packed_tensors(parts["blocks"], parts["scales"])
    if source.kind in ("fp8", "scaled"):
        return _scaled(parts["weight"].float(), parts["scale"].float(), source.facts["block"])
    if source.kind == "packed":
        return _unpacked(parts, **source.facts)
    if source.kind == "fp4":
        return _fp4(parts)
    if source.kind == "int8":
        return parts["weight"].float() * (parts["scale"].float()[:, None] / 127)
    return _four_bits(parts, source)


def _scaled(weight: Float[Tensor, "*rows width"], scale: Tensor, block: list[int] | None) -> Float[Tensor, "*rows width"]:
    """A weight times its scales: one for all, one for each row, or one for each block (of the last two dimensions)."""
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if scale.ndim != weight.ndim:
        scale = scale.reshape(*scale.shape, *[1] * (weight.ndim - scale.ndim))
    for dim, width in zip((-2, -1), block or (1, 1), strict=True):
        if scale.shape[dim] not in (1, weight.shape[dim]):  # the last block of a dimension may be cut
            scale = scale.repeat_interleave(width, dim).narrow(dim, 0, weight.shape[dim])
    return weight * scale


def _unpacked(parts: dict[str, Tensor], bits: int, shape: list[int]) -> Float[Tensor, "rows width"]:
    """(code - zero point) * scale of codes in int32 words, the first code in the lowest bits; zero points are packed along
    rows."""
    codes, scale = _codes(parts["weight"], bits)[:, : shape[1]], parts["scale"].float()
    groups = codes.unflatten(1, (scale.shape[1], -1)).float()
    zero = _codes(parts["zero"].T, bits).T[: shape[0], :, None] if "zero" in parts else 2 ** (bits - 1)
    return ((groups - zero) * scale[..., None]).flatten(1)


def _codes(words: Tensor, bits: int) -> Tensor:
    """The codes of int32 words along the last dimension, from 0."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2)


def _fp4(parts: dict[str, Tensor]) -> Float[Tensor, "rows width"]:
    """Floats of four bits, the first of two in the lower half, times the scale of their group: a power of two for 32 (MXFP4),
    or float8 for 16 over the tensor's scale (NVFP4)."""
    sizes = torch.tensor(E2M1)
    packed = parts["weight"]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    scale = parts["scale"]
    scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float() / parts["global"].float()
    return (torch.cat((sizes, -sizes))[codes].unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)


def _four_bits(parts: dict[str, Tensor], source: TensorSource) -> Tensor:
    facts, absmax = source.facts, parts["absmax"]
    if "nested_absmax" in parts:
        nested = parts["nested_absmax"].float().repeat_interleave(int(facts["nested_blocksize"]))[: absmax.numel()]
        absmax = parts["nested_quant_map"].float()[absmax.long()] * nested + float(facts["nested_offset"])
    packed = parts["weight"].flatten()
    codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten().long()  # the first of two values is in the upper half
    count = torch.Size(facts["shape"]).numel()
    values = parts["quant_map"].float()[codes[:count]]
    scales = absmax.float().repeat_interleave(int(facts["blocksize"]))[:count]
    return (values * scales).view(*facts["shape"])


def _read(header: TensorHeader) -> Tensor:
    dtype = getattr(torch, TORCH_NAMES[header.dtype])
    return torch.frombuffer(bytearray(header.read()), dtype=dtype).view(header.shape)
