"""The model of a directory as evaluation scores it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from model_ops.models.model_directory import load_model, training_device
from model_ops.quantization.quantized_model import is_quantized, load_quantized


def scored_model(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model on the training device, for packed rows; the layers of a quantized one compute what a server computes."""
    device = training_device()
    if is_quantized(directory):
        return load_quantized(directory, dtype, "packed").to(device)
    return load_model(directory, dtype=dtype, attention="packed", device=device)
