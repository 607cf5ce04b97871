"""Reads base models whose weights are quantized, without torch: what they become as bfloat16, and how large that is. Known are
MXFP4, FP8 with scales by block, channel or tensor, bitsandbytes nf4, fp4 and int8, and of compressed-tensors symmetric int8 and
FP8, packed int4 and int8 with or without zero points, NVFP4 and MXFP4."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_ops.files import DTYPE_BYTES, Layout, TensorHeader
from model_ops.jobs import ModelError

FLOAT_DTYPES = ("BF16", "F16", "F32")
FP8_SCALES = ("_scale_inv", "_scale")
FOUR_BITS = ".quant_state.bitsandbytes__"
LEFT_OUT = (".input_scale", ".weight_format", ".activation_scale", ".input_global_scale", ".k_scale", ".v_scale", ".q_scale")
"""Ends of tensors that only a server of the quantized form needs."""

READ = "MXFP4, FP8, bitsandbytes nf4, fp4 and int8, and int4, int8, FP8, NVFP4 and MXFP4 of compressed-tensors"
PACKED_BITS = (4, 8)


@dataclass(frozen=True)
class TensorSource:
    """Where a float tensor comes from."""

    kind: str
    """mxfp4, fp8, scaled, packed (integers in int32), fp4 (pairs in a byte), nf4 (any 4 bits of bitsandbytes), int8, or
    plain."""
    parts: dict[str, TensorHeader]
    """The stored tensors by role."""
    facts: Mapping[str, Any]
    """Numbers of the quantization that are stored as JSON."""


@dataclass(frozen=True)
class FloatForm:
    """Float tensors of a quantized checkpoint."""

    title: str
    """Name of the quantization."""
    layout: Layout
    """The float tensors."""
    sources: dict[str, TensorSource]
    """Source of each float tensor, by name."""

    @property
    def bytes(self) -> int:
        """Size of the float weights."""
        return sum(DTYPE_BYTES[dtype] * math.prod(shape) for dtype, shape in self.layout.values())

    def headers(self) -> dict[str, TensorHeader]:
        """The float tensors as headers, to compare their names and shapes with a config; only plain ones can be read."""
        headers = {}
        for name, (dtype, shape) in self.layout.items():
            stored = next(iter(self.sources[name].parts.values()))
            headers[name] = TensorHeader(stored.file, dtype, shape, stored.start, stored.end)
        return headers


def float_form(config: Mapping[str, Any], tensors: Mapping[str, TensorHeader]) -> FloatForm:
    """The float form of a quantized checkpoint. Raises ModelError, one sentence, if it cannot be read."""
    quantization = config.get("quantization_config")
    quantization = quantization if isinstance(quantization, Mapping) else {}
    method = str(quantization.get("quant_method") or "an unnamed method")
    readers = {
        "mxfp4": ("MXFP4", _mxfp4),
        "fp8": ("FP8", _fp8),
        "bitsandbytes": ("bitsandbytes", _bitsandbytes),
        "compressed-tensors": ("compressed-tensors", _compressed_tensors),
    }
    if method in readers:
        title, reader = readers[method]
        sources = reader(tensors, quantization)
    else:
        raise ModelError(
            f"the base model is quantized by {method}, which is not read here (read are {READ}); name the model "
            "before it was quantized"
        )
    taken = {(part.file, part.start) for source in sources.values() for part in source.parts.values()}
    layout: Layout = {name: ("BF16", _shape(source)) for name, source in sources.items()}
    for name, header in tensors.items():
        if (header.file, header.start) in taken or name.endswith(LEFT_OUT):
            continue
        if header.dtype not in FLOAT_DTYPES and not name.endswith(("num_batches_tracked", "position_ids")):
            raise ModelError(
                f"the base model is quantized by {method}, and its tensor {name} ({header.dtype}) has no "
                "scales that are known here; name the model before it was quantized"
            )
        sources[name] = TensorSource("plain", {"value": header}, {})
        layout[name] = ("F32" if name.endswith("e_score_correction_bias") else "BF16", header.shape)
    return FloatForm(title, layout, sources)


def _mxfp4(tensors: Mapping[str, TensorHeader], config: Mapping[str, Any]) -> dict[str, TensorSource]:
    pairs = [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]
    return {
        name: TensorSource("mxfp4", _all(tensors, name, {"blocks": f"{name}_blocks", "scales": f"{name}_scales"}), {})
        for name in pairs
    }


def _fp8(tensors: Mapping[str, TensorHeader], config: Mapping[str, Any]) -> dict[str, TensorSource]:
    block = config.get("weight_block_size")
    sources = {}
    for name, header in tensors.items():
        if not header.dtype.startswith("F8"):
            continue
        scale = next((f"{name}{end}" for end in FP8_SCALES if f"{name}{end}" in tensors), f"{name}{FP8_SCALES[0]}")
        sources[name] = TensorSource("fp8", _all(tensors, name, {"weight": name, "scale": scale}), {"block": block})
    return sources


def _bitsandbytes(tensors: Mapping[str, TensorHeader], config: Mapping[str, Any]) -> dict[str, TensorSource]:
    sources = {}
    for name, header in tensors.items():
        if FOUR_BITS in name:
            weight = name.partition(FOUR_BITS)[0]
            facts = json.loads(header.read())
            names = {"weight": weight, "absmax": f"{weight}.absmax", "quant_map": f"{weight}.quant_map", "state": name}
            if "nested_blocksize" in facts:
                names |= {"nested_absmax": f"{weight}.nested_absmax", "nested_quant_map": f"{weight}.nested_quant_map"}
            sources[weight] = TensorSource("nf4", _all(tensors, weight, names), facts)
        elif name.endswith(".SCB"):
            weight = f"{name.removesuffix('.SCB')}.weight"
            sources[weight] = TensorSource("int8", _all(tensors, weight, {"weight": weight, "scale": name}), {})
    return sources


def _compressed_tensors(tensors: Mapping[str, TensorHeader], config: Mapping[str, Any]) -> dict[str, TensorSource]:
    """Weights times their scales: one for each tensor, row, group of columns of a row, or block; integers and floats of four
    bits that are packed."""
    sources = {}
    for name, header in tensors.items():
        if name.endswith(".weight_packed"):
            weight = name.removesuffix("_packed")
            sources[weight] = (_fp4 if header.dtype == "U8" else _packed)(tensors, weight, header)
            continue
        if not name.endswith(".weight") or not (header.dtype == "I8" or header.dtype.startswith("F8")):
            continue
        if f"{name}_zero_point" in tensors:
            raise ModelError(
                f"the base model is quantized with zero points ({name}), which is not read here (read are "
                f"{READ}); name the model before it was quantized"
            )
        parts = _all(tensors, name, {"weight": name, "scale": f"{name}_scale"})
        scales = parts["scale"].shape
        groups = scales[-1] if len(scales) == 2 else 1
        block = [1, header.shape[-1] // groups]
        if len(scales) == 2 and scales[0] not in (1, header.shape[0]):
            block = _block(config, name)
        sources[name] = TensorSource("scaled", parts, {"block": block})
    return sources


def _block(config: Mapping[str, Any], name: str) -> list[int]:
    """Rows and columns of the blocks that share a scale."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        block = (group.get("weights") or {}).get("block_structure")
        if block:
            return [int(size) for size in block]
    raise ModelError(
        f"the base model has scales of {name} by block, and its quantization_config names no block_structure; "
        "name the model before it was quantized"
    )


def _packed(tensors: Mapping[str, TensorHeader], name: str, header: TensorHeader) -> TensorSource:
    names = {"weight": f"{name}_packed", "scale": f"{name}_scale", "shape": f"{name}_shape"}
    if f"{name}_zero_point" in tensors:
        names["zero"] = f"{name}_zero_point"
    parts = _all(tensors, name, names)
    rows, width = struct.unpack("<2q", parts["shape"].read())
    bits = next((bits for bits in PACKED_BITS if math.ceil(width * bits / 32) == header.shape[-1]), None)
    if bits is None or f"{name}_g_idx" in tensors:
        raise ModelError(
            f"the base model packs {name} in a way that is not read here (read are {READ}, columns in order); "
            "name the model before it was quantized"
        )
    return TensorSource("packed", parts, {"bits": bits, "shape": [rows, width]})


def _fp4(tensors: Mapping[str, TensorHeader], name: str, header: TensorHeader) -> TensorSource:
    names = {"weight": f"{name}_packed", "scale": f"{name}_scale"}
    if f"{name}_global_scale" in tensors:
        names["global"] = f"{name}_global_scale"
    return TensorSource("fp4", _all(tensors, name, names), {"shape": [header.shape[0], header.shape[1] * 2]})


def _all(tensors: Mapping[str, TensorHeader], name: str, names: dict[str, str]) -> dict[str, TensorHeader]:
    missing = [stored for stored in names.values() if stored not in tensors]
    if missing:
        raise ModelError(f"the base model lacks {missing[0]}, without which {name} cannot be read; copy the whole model again")
    return {role: tensors[stored] for role, stored in names.items()}


def _shape(source: TensorSource) -> tuple[int, ...]:
    if source.kind == "mxfp4":  # [experts, rows, groups, 16 bytes of two values each], used transposed
        experts, rows, groups, packed = source.parts["blocks"].shape
        return experts, groups * packed * 2, rows
    if source.kind in ("nf4", "packed", "fp4"):
        return tuple(source.facts["shape"])
    return source.parts["weight"].shape
