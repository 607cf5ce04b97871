"""Tells a PEFT adapter's directory from a model's, and names the base model that the adapter was trained on. Imports no
torch."""

import json
import re
from pathlib import Path

from model_ops.jobs import ModelError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_adapter(directory: Path) -> bool:
    """Whether the directory holds an adapter and no model. Trainers may put the base's config.json into it as well."""
    if not (directory / CONFIG).is_file():
        return False
    return all(path.name.startswith("adapter_") for path in directory.glob("*.safetensors"))


def base_of_adapter(directory: Path) -> str:
    """The base model of an adapter: an absolute directory, or a Hugging Face id (owner/name). A relative directory in
    adapter_config.json starts from the adapter's own. Raises ModelError if the file names no base model, or one that is
    neither."""
    path = directory / CONFIG
    try:
        config = json.loads(path.read_text())
        name = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read, or names no base_model_name_or_path: save the adapter again") from error
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path} names no base_model_name_or_path: write the base model's directory or Hugging Face id there")
    place = (directory / Path(name).expanduser()).resolve()
    if place.is_dir():
        return str(place)
    if _HUB_ID.fullmatch(name):
        return name
    raise ModelError(
        f"{path}: base_model_name_or_path is {name}, no directory here and no Hugging Face id (owner/name); "
        "write the base model's absolute directory there"
    )


def tokenizer_directory(base: Path, adapter: str | Path) -> Path:
    """The directory with the tokenizer of the merged model: the adapter's if it has one, else the base model's."""
    own = adapter and any((Path(adapter) / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))
    return Path(adapter) if own else base


def model_places(name: str) -> list[str]:
    """Where the files of a recipe's base model come from: its own place and, of an adapter, its base model's."""
    return [name, base_of_adapter(Path(name))] if is_adapter(Path(name)) else [name]
