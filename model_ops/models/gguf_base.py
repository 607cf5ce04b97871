"""Reads a GGUF file of llama.cpp as a base model: a directory in the Hugging Face layout with bfloat16 weights, which
transformers' loader makes once in the user's cache folder."""

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from model_ops.files import write_text
from model_ops.jobs import ModelError

FAMILIES = ("llama", "qwen2", "qwen3")
"""Architectures, as GGUF names them: SmolLM's and Mistral's is llama."""
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def gguf_directory(file: Path) -> Path:
    """The model's directory, made where this file, of this size and time, was not read before: as many bytes as bfloat16 needs.
    Raises ModelError with what to give instead."""
    state = file.stat()
    known = hashlib.sha256(f"{file.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "millrace" / "gguf"
    directory = cache / f"{file.stem}-{known}"
    if directory.is_dir():
        return directory
    reader, values = _metadata(file)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{cache}, where {file} is read to, cannot be written; set XDG_CACHE_HOME to a folder that can"
        ) from error
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        place = Path(folder) / "model"
        try:
            _convert(file, reader, place)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
            raise ModelError(f"transformers cannot read {file} ({type(error).__name__}); give the model's directory") from error
        write_text(place / "README.md", _card(file, values))
        try:
            place.rename(directory)
        except OSError:  # another process made it first
            if not directory.is_dir():
                raise
    return directory


def _metadata(file: Path) -> tuple[Any, dict[str, Any]]:
    """The file's reader and general facts, after a look at whether it can be read."""
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{file} is no GGUF file; give a model's directory, an id of the Hugging Face Hub, or a GGUF file")
    if _PART.search(file.name):
        raise ModelError(f"{file} is one part of several; join them first: llama-gguf-split --merge")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError(f"{file} is read by the package gguf, which is not installed: pip install 'millrace[gguf]'") from error
    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.")}
        tensors = {tensor.name for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is damaged ({type(error).__name__}); copy it again") from error
    kind = fields.get("general.architecture")
    if kind not in FAMILIES:
        raise ModelError(
            f"{file} holds a {kind} model, and GGUF files of {', '.join(FAMILIES)} are read; give the model's directory"
        )
    # Transformers' loader loses these in silence.
    scaled = fields.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors
    other = kind == "qwen3" and fields.get("qwen3.attention.key_length", 128) != 128
    if scaled or other or f"{kind}.attention.sliding_window" in fields:
        what = "scaled rotary positions" if scaled else "heads that are not 128 wide" if other else "windows of attention"
        raise ModelError(f"{file} has {what}, which transformers does not read from GGUF; give the model's directory")
    if "tokenizer.chat_template" not in fields:
        raise ModelError(f"{file} has no chat template: it is a base without chat; give the directory of a chat model")
    return reader, fields


def _convert(file: Path, reader: Any, output: Path) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # The loader would read the file three more times, and a vocabulary of 150,000 takes 10 seconds each.
    reader_class = gguf.GGUFReader
    vars(gguf)["GGUFReader"] = lambda _: reader
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    finally:
        vars(gguf)["GGUFReader"] = reader_class
    # The loader's config names the GGUF file as its quantization: a new model of the same values names none.
    left = ("quantization_config", "_name_or_path", "_model_name_or_path")
    values = {name: value for name, value in read.config.to_dict().items() if name not in left}
    with torch.device("meta"):  # values drawn for it would cost more than the reading
        model = type(read)(type(read.config)(**values))
    model.load_state_dict(read.state_dict(), assign=True)
    model.config.dtype = torch.bfloat16
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end, bos_token_id=tokenizer.bos_token_id)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    logging.set_verbosity(level)
    logging.enable_progress_bar()


def _card(file: Path, values: dict[str, Any]) -> str:
    """What the directory is, with its licence where the file states one."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    licence = values.get("general.license")
    head = f"---\nlicense: {licence}\n---\n\n" if isinstance(licence, str) and re.fullmatch(r"[\w.-]+", licence) else ""
    return (
        f"{head}# {file.stem}\n\nRead from `{file.name}` (SHA-256 {digest}), whose weights were rounded before: they are "
        "bfloat16 here, and the figures of the model's own card do not hold for them.\n"
    )
