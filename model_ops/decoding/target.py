"""The target, ready to decode: loads a model directory, quantized or not.

    runner = load_runner(Path("models/quantized"))
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from model_ops.decoding.incremental import IncrementalModel
from model_ops.errors import ModelError
from model_ops.models.model_directory import load_model, training_device
from model_ops.quantization.quantized_model import is_quantized, load_quantized
from model_ops.tensor_files import TensorFileError, read_directory

SMALL_PARAMETERS = 100_000_000
"""On a CPU, models below this run in float32: their products are too small for bfloat16 to be faster, and ties
between logits disappear."""


def load_runner(directory: Path) -> IncrementalModel:
    """The model in a directory, quantized or not, ready to decode.

    On an accelerator in bfloat16; on a CPU in float32 where it is small, else in bfloat16. Raises ModelError as
    `load_model` does.
    """
    device = training_device()
    try:
        headers = read_directory(directory)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    parameters = sum(math.prod(header.shape) for header in headers.values())
    dtype = torch.float32 if device.type == "cpu" and parameters < SMALL_PARAMETERS else torch.bfloat16
    if is_quantized(directory):
        model = load_quantized(directory, dtype).to(device)
    else:
        model = load_model(directory, dtype=dtype, attention="sdpa", device=device)
    return IncrementalModel(model)
