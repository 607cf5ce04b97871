"""Looks up a recipe's base model (a Hub id, a directory, or `tiny`) from its config, without loading weights or torch."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from model_ops.adapters import base_of_adapter, is_adapter
from model_ops.families import FAMILIES, known_config, parameters_of
from model_ops.files import TensorFileError, read_directory
from model_ops.jobs import Misuse, ModelError
from model_ops.models import float_form, gguf_directory

TINY = "tiny"
TINY_CONTEXT = 2_048
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")


class BaseModelError(Misuse):
    """A recipe cannot use this base model; the message says what to give."""


@dataclass(frozen=True)
class Base:
    """config: of a Hub id, that of the local cache, or else of the table of common models. context: in tokens. parameters: an
    estimate from the size of the weights, or from the config; None without either.
    adapter: the directory of a PEFT adapter to merge into this model; empty if there is none."""

    name: str
    kind: Literal["tiny", "directory", "hub"]
    config: dict[str, Any] = field(default_factory=dict)
    weight_bytes: int = 0
    adapter: str = ""
    file: str = ""
    """The GGUF file that the directory was read from."""

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def context(self) -> int | None:
        if self.kind == "tiny":
            return TINY_CONTEXT
        length = self.config.get("max_position_embeddings")
        text = self.config.get("text_config")
        length = length or (text.get("max_position_embeddings") if isinstance(text, dict) else None)
        return length if type(length) is int else None

    @property
    def layers(self) -> int | None:
        count = self.config.get("num_hidden_layers")
        return count if type(count) is int else None

    @property
    def parameters(self) -> int | None:
        if not self.weight_bytes:
            return parameters_of(self.config)
        named = self.config.get("dtype") or self.config.get("torch_dtype")
        return self.weight_bytes // (4 if named == "float32" else 2)

    @property
    def served(self) -> bool:
        """Whether the table of families holds this architecture. True if the architecture is not known yet."""
        return self.kind != "directory" or self.model_type in FAMILIES


def look_at_base(name: str, home: Path | None = None) -> Base:
    """Looks up a base model by name; relative directories start from `home`. The name of a PEFT adapter's directory leads to
    the model that the adapter was trained on. Raises BaseModelError for anything else."""
    if name == TINY:
        return Base(TINY, "tiny")
    directory = ((home or Path()) / Path(name).expanduser()).resolve()
    if is_adapter(directory):
        return _base_of(directory)
    if directory.is_dir():
        config_file = directory / "config.json"
        try:
            config = json.loads(config_file.read_text())
        except FileNotFoundError:
            files = sorted(path.name for path in directory.glob("*.gguf"))
            give = f"name its file {files[0]}" if files else "give a model in the Hugging Face layout"
            raise BaseModelError(f"base model {name}: the directory holds no config.json; {give}") from None
        except (OSError, ValueError) as error:
            said = f"base model {name}: config.json cannot be read as JSON ({type(error).__name__}); copy the model again"
            raise BaseModelError(said) from error
        if not isinstance(config, dict) or "model_type" not in config:
            raise BaseModelError(f"base model {name}: config.json names no model_type; give a model in the Hugging Face layout")
        size = _weight_bytes(directory, config)
        return Base(str(directory), "directory", config, size)
    if directory.is_file():
        try:
            return replace(look_at_base(str(gguf_directory(directory))), file=str(directory))
        except ModelError as error:
            raise BaseModelError(f"base model: {error}") from error
    if name.startswith((".", "/", "~")):
        said = f"base model {name}: there is no such directory; give one, a Hugging Face id (owner/name), or tiny"
        raise BaseModelError(said)
    if not _HUB_ID.match(name):
        said = f"base model {name} is neither a directory nor a Hugging Face id (owner/name); give one of them, or tiny"
        raise BaseModelError(said)
    if name.lower().endswith("-gguf"):
        raise BaseModelError(f"base model {name} is a repository of GGUF files; fetch one of them (hf download), and name it")
    return Base(name, "hub", cached_config(name) or known_config(name) or {})


def cached_config(name: str) -> dict[str, Any] | None:
    """The config of a Hub id in the local cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(OSError, ValueError):  # no repository of that name, or a damaged file: fetching the model reports it
        file = try_to_load_from_cache(name, "config.json")
        config = json.loads(Path(file).read_text(encoding="utf-8")) if isinstance(file, str) else None
        return config if isinstance(config, dict) else None
    return None


def _weight_bytes(directory: Path, config: dict[str, Any]) -> int:
    """Bytes of the weights as training reads them: of a quantized model, as bfloat16."""
    if config.get("quantization_config") is not None:
        with suppress(ModelError, TensorFileError, OSError):  # whoever reads the weights says so
            return float_form(config, read_directory(directory)).bytes
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _base_of(adapter: Path) -> Base:
    try:
        base = look_at_base(base_of_adapter(adapter))
    except ModelError as error:
        raise BaseModelError(f"base model: {error}") from error
    if base.adapter:
        raise BaseModelError(f"base model {adapter}: its base {base.adapter} is an adapter as well; merge that one first")
    return replace(base, adapter=str(adapter))
