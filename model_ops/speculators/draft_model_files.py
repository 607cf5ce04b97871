"""Writes a drafter's directory: model.safetensors and config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model_ops.atomic_files import renamed_when_complete
from model_ops.tensor_files import order_metadata


def in_dtype(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors for a file: on the CPU, contiguous, floating-point ones in `dtype`."""
    return {name: tensor.detach().cpu().to(dtype).contiguous() if tensor.is_floating_point() else tensor.cpu()
            for name, tensor in weights.items()}


def write_directory(directory: Path, weights: dict[str, Tensor], config: dict[str, Any],
                    metadata: dict[str, str] | None = None) -> None:
    """Writes model.safetensors, with `metadata` in its header and visible only when complete, and config.json."""
    with renamed_when_complete(directory / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt", **(metadata or {})})
        order_metadata(temporary)
        temporary.chmod(0o644)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype in config.json, such as bfloat16."""
    return str(dtype).removeprefix("torch.")
