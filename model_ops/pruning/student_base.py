"""Checks the directory of a model that a student begins as, or that teaches, from its files and config. No torch."""

import json
from pathlib import Path

from model_ops.adapters import is_adapter
from model_ops.files import TensorFileError, read_directory
from model_ops.jobs import ModelError
from model_ops.models import float_form


def refuse_unusable_base(directory: Path) -> None:
    """Raises ModelError for a directory without config.json, safetensors or tokenizer, for an adapter, and for weights whose
    quantization cannot be read. Whether the family can be trained is tried when the stage begins."""
    if is_adapter(directory):
        raise ModelError(f"{directory} holds an adapter, not a model; merge it into its base first")
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{directory} holds no readable config.json; give a model directory in the Hugging Face layout"
        ) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{directory}/config.json names no model_type; give a model directory in the Hugging Face layout")
    if not any(directory.glob("*.safetensors")):
        raise ModelError(f"{directory} holds no .safetensors file; give a model saved as safetensors")
    if not (directory / "tokenizer.json").exists():
        raise ModelError(f"{directory} holds no tokenizer.json; copy the tokenizer that the model was trained with")
    if config.get("quantization_config") is not None:
        try:
            float_form(config, read_directory(directory))
        except TensorFileError as error:
            raise ModelError(str(error)) from error
