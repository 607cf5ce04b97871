"""Operation `quantize`: a model in, the same model with int8 weights out, in the layout servers load.

    python -m model_ops.worker job.json      # {"operation": "quantize", "inputs": {"model": DIR}, "output": DIR, ...}

Round to nearest, one scale per output channel; no calibration data is needed, since activations are scaled when they
arrive (see `model_ops.quantization.quantized`). Tensors stream through one at a time: memory holds one tensor, not the model.
Embeddings, norms, biases and lm_head stay as they are; tied embeddings stay tied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.models.mtp_tensors import unquantized_layer
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.progress import Progress
from model_ops.quantization.quantized import SUPPORTED_MODEL_TYPES, is_block_linear, quantize_symmetric
from model_ops.tensor_files import TensorFileError, TensorHeader, read_directory, write_stream

FLOAT_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

QUANTIZATION_CONFIG = {
    "config_groups": {
        "group_0": {
            "format": "int-quantized",
            "input_activations": {
                "actorder": None, "block_structure": None, "dynamic": True, "group_size": None, "num_bits": 8,
                "observer": None, "observer_kwargs": {}, "strategy": "token", "symmetric": True, "type": "int",
            },
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True, "type": "int",
            },
        }
    },
    "format": "int-quantized",
    "global_compression_ratio": None,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.20.0",
}
"""What compressed-tensors 0.20.0 writes for dynamic int8 W8A8."""


def quantization_config(config: dict[str, Any], mtp_layer: bool) -> dict[str, Any]:
    """QUANTIZATION_CONFIG; with mtp_layer it says, too, that a multi-token-prediction layer beside this model is not int8."""
    if not mtp_layer:
        return QUANTIZATION_CONFIG
    return {**QUANTIZATION_CONFIG, "ignore": [*QUANTIZATION_CONFIG["ignore"], unquantized_layer(config)]}


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Quantize inputs["model"] into job.output; metrics: bytes before and after, tensors quantized, largest error."""
    settings = job.settings_as(QuantizeSettings)
    return quantize_directory(job.inputs["model"], job.output, progress, settings.mtp_layer)


def quantize_directory(source: Path, output: Path, progress: Progress, mtp_layer: bool = False) -> dict[str, Any]:
    """Write the int8 W8A8 copy of a model directory; mtp_layer: see `quantization_config`.

    Raises ModelError where the model is of an unknown architecture, already quantized, or holds a Linear that is not
    a finite float matrix.
    """
    config = _checked_config(source)
    try:
        headers = read_directory(source)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    layout = _output_layout(source, headers)
    output.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        keep = path.is_file() and not path.name.endswith((".safetensors", ".safetensors.index.json"))
        if keep and path.name not in {"config.json", "manifest.json", "metrics.jsonl", "README.md"}:
            shutil.copyfile(path, output / path.name)
    errors: list[float] = []
    unfinished = output / "model.safetensors.unfinished"
    written = write_stream(unfinished, layout, _quantized_tensors(headers, errors, progress))
    unfinished.replace(output / "model.safetensors")
    scheme = quantization_config(config, mtp_layer)
    (output / "config.json").write_text(json.dumps({**config, "quantization_config": scheme}, indent=2))
    before = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    return {
        "bytes_before": before,
        "bytes_after": written,
        "size_share": written / before,
        "tensors_quantized": len(errors),
        "largest_relative_error": max(errors),
    }


def _checked_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{source} has no config.json: it is no model directory") from error
    except ValueError as error:
        raise ModelError(f"{source / 'config.json'} is not JSON: copy it again") from error
    if "quantization_config" in config:
        raise ModelError(f"{source} is quantized already: start from its unquantized form")
    if config.get("model_type") not in SUPPORTED_MODEL_TYPES:
        raise ModelError(f"{source} is a {config.get('model_type')} model; int8 W8A8 is known for "
                         f"{', '.join(SUPPORTED_MODEL_TYPES)}")
    return config


def _output_layout(source: Path, headers: dict[str, TensorHeader]) -> dict[str, tuple[str, tuple[int, ...]]]:
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, header in headers.items():
        if is_block_linear(name):
            if len(header.shape) != 2 or header.dtype not in FLOAT_DTYPES:
                raise ModelError(f"{source}: {name} is {header.dtype} {list(header.shape)}, not a float matrix, "
                                 "and cannot be quantized")
            layout[name] = ("I8", header.shape)
            layout[f"{name}_scale"] = ("F32", (header.shape[0], 1))
        elif ".layers." in name and len(header.shape) > 1:
            raise ModelError(f"{source}: {name} is a matrix of a block that int8 W8A8 does not know; "
                             f"known architectures are {', '.join(SUPPORTED_MODEL_TYPES)}")
        else:
            layout[name] = (header.dtype, header.shape)
    if not any(dtype == "I8" for dtype, _ in layout.values()):
        raise ModelError(f"{source} holds no Linear layer of a block to quantize")
    return layout


def _quantized_tensors(headers: dict[str, TensorHeader], errors: list[float],
                       progress: Progress) -> Iterator[tuple[str, bytes]]:
    for done, (name, header) in enumerate(headers.items(), start=1):
        data = header.read()
        if is_block_linear(name):
            weight = torch.frombuffer(bytearray(data), dtype=FLOAT_DTYPES[header.dtype]).view(header.shape).float()
            if not torch.isfinite(weight).all():
                raise ModelError(f"{header.file}: {name} holds values that are not finite; train the model again")
            quantized, scale = quantize_symmetric(weight)
            error = (quantized.float() * scale - weight).norm() / weight.norm().clamp(min=1e-12)
            errors.append(error.item())
            yield name, quantized.numpy().tobytes()
            yield f"{name}_scale", scale.numpy().tobytes()
        else:
            yield name, data
        progress.stop_if_requested()
        progress.report("quantize", done, len(headers), "tensors")
