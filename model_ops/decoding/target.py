"""Loads a model directory, quantized or not, for decoding. Apart from `runner.py`, so that operations that decode the model
they train do not depend on the quantization schemes."""

import math
from pathlib import Path

from model_ops.decoding.runner import Runner, decoding_dtype, new_runner
from model_ops.files import TensorFileError, read_directory
from model_ops.jobs import ModelError
from model_ops.models import load_model, training_device
from model_ops.quantization import is_quantized, load_quantized


def load_runner(directory: Path) -> Runner:
    """Loads the model of a directory, quantized or not, for decoding. dtype: `decoding_dtype`. Raises ModelError as
    `load_model` does."""
    device = training_device()
    try:
        headers = read_directory(directory)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    parameters = sum(math.prod(header.shape) for header in headers.values())
    dtype = decoding_dtype(device, parameters)
    if is_quantized(directory):
        model = load_quantized(directory, dtype).to(device)
    else:
        model = load_model(directory, dtype=dtype, attention="sdpa", device=device)
    return new_runner(model)
