"""Reads models of one shape tensor by tensor, and writes their weighted mean; memory holds one tensor of each model.

The merge has the dtypes, config, tokenizer and chat template of a model that the caller names. A head that is tied to the
embeddings is not stored, so it stays tied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig

from model_ops.files import (
    TORCH_NAMES,
    TensorFileError,
    TensorHeader,
    read_directory,
    renamed_when_complete,
    template_files,
    write_stream,
)
from model_ops.jobs import ModelError, Progress
from model_ops.models import load_tokenizer, read_config
from model_ops.quantization import model_of_config

FLOATS = ("BF16", "F16", "F32", "F64")
LEFT = {"manifest.json", "metrics.jsonl", "README.md"}
"""Files of a model that its merge does not take over."""
SAME_WEIGHTS = {
    "dtype", "torch_dtype", "_name_or_path", "name_or_path", "transformers_version", "use_cache", "architectures",
    "bos_token_id", "eos_token_id", "pad_token_id", "attn_implementation", "_attn_implementation",
}  # fmt: skip
"""Settings of a config that say nothing of what the weights compute."""

Values = Float[Tensor, "..."]


@dataclass(frozen=True)
class Checkpoint:
    """A model to merge."""

    name: str
    """Name in messages."""
    directory: Path
    headers: dict[str, TensorHeader]
    """Its stored tensors, without tied copies of others."""

    @classmethod
    def open(cls, name: str, directory: Path) -> Checkpoint:
        """Reads config and headers. Raises ModelError for a quantized or damaged model, or a directory that holds none."""
        config = read_config(directory)
        if config.get("quantization_config") is not None:
            raise ModelError(f"{name} is quantized, and quantized weights cannot be merged: name its unquantized form")
        try:
            headers = read_directory(directory)
        except TensorFileError as error:
            raise ModelError(str(error)) from error
        if not headers:
            raise ModelError(f"{directory} holds no .safetensors file; give a model saved as safetensors")
        tied = set(model_of_config(config).all_tied_weights_keys) if config.get("tie_word_embeddings") else set()
        return cls(name, directory, {tensor: header for tensor, header in headers.items() if tensor not in tied})

    def read(self, tensor: str) -> Tensor:
        """A tensor in its stored dtype."""
        header = self.headers[tensor]
        dtype = getattr(torch, TORCH_NAMES[header.dtype])
        return torch.frombuffer(bytearray(header.read()), dtype=dtype).view(header.shape)


def refuse_different(models: Sequence[Checkpoint]) -> None:
    """Raises ModelError if a model differs from the first in a tensor's name, shape or kind, a setting of the config, or the
    tokenizer."""
    first, others = models[0], models[1:]
    settings, tokens = _settings(first), None
    for other in others:
        for tensor in first.headers:
            if tensor not in other.headers:
                raise ModelError(f"{other.name} has no tensor {tensor}, and {first.name} has one: merge models of one shape")
            mine, its = first.headers[tensor], other.headers[tensor]
            if mine.shape != its.shape:
                raise ModelError(
                    f"tensor {tensor} is {list(its.shape)} in {other.name} and {list(mine.shape)} in "
                    f"{first.name}: merge models of one shape"
                )
            if (mine.dtype in FLOATS) != (its.dtype in FLOATS):
                raise ModelError(
                    f"tensor {tensor} is {its.dtype} in {other.name} and {mine.dtype} in {first.name}: merge "
                    "models that store floats"
                )
        if more := sorted(set(other.headers) - set(first.headers)):
            raise ModelError(
                f"{other.name} has tensor {more[0]}, and {first.name} has none: merge models of one architecture and size"
            )
        its_settings = _settings(other)
        for key in sorted(settings.keys() | its_settings.keys()):
            if settings.get(key) != its_settings.get(key):
                raise ModelError(
                    f"config.json has {key} {its_settings.get(key)} in {other.name} and {settings.get(key)} in "
                    f"{first.name}: merge models that compute alike"
                )
        tokens = tokens or load_tokenizer(first.directory).get_vocab()
        its_tokens = load_tokenizer(other.directory).get_vocab()
        if tokens != its_tokens:
            odd = min(number for _, number in tokens.items() ^ its_tokens.items())
            raise ModelError(
                f"the tokenizers of {other.name} and {first.name} differ in token {odd}, so rows of the "
                "embeddings mean different tokens: merge models of one tokenizer"
            )


def linear(tensors: Sequence[Values], weights: Sequence[float]) -> Values:
    """sum(w_i x_i) / sum(w_i) (Wortsman et al., Model soups, arXiv 2203.05482)."""
    total = torch.zeros_like(tensors[0], dtype=torch.float32)
    for tensor, weight in zip(tensors, weights, strict=True):
        total += weight * tensor.float()
    return total / sum(weights)


def write_merged(
    form: Checkpoint, models: Sequence[Checkpoint], weights: Sequence[float], output: Path, progress: Progress
) -> int:
    """Writes the weighted mean of the models into `output`; returns bytes of the weights. form: the model whose dtypes and
    other files the merge has. Integer tensors must be alike in all models. Raises ModelError if they are not, or if a merged
    value is not finite."""
    output.mkdir(parents=True, exist_ok=True)
    template_files.copy_beside_weights(form.directory, output, LEFT)

    def tensors() -> Iterator[tuple[str, bytes]]:
        for done, (name, header) in enumerate(form.headers.items(), start=1):
            merged = _merged(name, models, weights).to(getattr(torch, TORCH_NAMES[header.dtype]))
            yield name, merged.contiguous().flatten().view(torch.uint8).numpy().tobytes()
            progress.stop_if_requested()
            progress.report("merge", done, len(form.headers), "tensors")

    layout = {name: (header.dtype, header.shape) for name, header in form.headers.items()}
    with renamed_when_complete(output / "model.safetensors") as temporary:
        return write_stream(temporary, layout, tensors())


def _merged(name: str, models: Sequence[Checkpoint], weights: Sequence[float]) -> Tensor:
    values = [model.read(name) for model in models]
    if values[0].is_floating_point():
        merged = linear(values, weights)
        if not torch.isfinite(merged).all():
            raise ModelError(
                f"the merge of {name} holds values that are not finite: check that tensor in "
                f"{', '.join(model.name for model in models)}, and lower the weights"
            )
        return merged
    for model, value in zip(models, values, strict=True):
        if not torch.equal(value, values[0]):
            raise ModelError(
                f"tensor {name} holds integers that differ in {model.name} and {models[0].name}: merge models "
                "that have the same"
            )
    return values[0]


def _settings(model: Checkpoint) -> dict[str, Any]:
    """The config with transformers' defaults filled in, so that files of different versions of transformers compare."""
    try:
        config = AutoConfig.from_pretrained(model.directory, local_files_only=True, trust_remote_code=False).to_dict()
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(
            f"{model.directory} has a config.json that transformers cannot read ({type(error).__name__}); copy the model again"
        ) from error
    return {key: value for key, value in config.items() if key not in SAME_WEIGHTS}
