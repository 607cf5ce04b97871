"""A float model whose blocks hold weights only while they are needed, read from the directory's safetensors files.

    model = load_blockwise(directory, torch.bfloat16, device)
    with model.outside(): ...            # weights of embedding, final norm and what else is not in a block
    with model.block(3): ...             # weights of block 3; changes to them are lost afterwards

The head is not read. A family that the table does not know has to be tried with weights, and is loaded whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from model_ops.families import FAMILIES, PACKED, layer_list
from model_ops.files import TORCH_NAMES, TensorFileError, TensorHeader, read_directory
from model_ops.jobs import ModelError
from model_ops.models.isolation import separate_documents
from model_ops.models.model_directory import empty_model, load_model, read_config, refuse_wrong_tensors

OUTSIDE = -1
"""Number of the part of a model that is not in a block."""


@dataclass
class BlockwiseModel:
    """A model whose blocks are loaded when they are needed."""

    module: PreTrainedModel
    """The model."""
    device: torch.device
    """Device of weights while they are loaded."""
    dtype: torch.dtype | None = None
    parts: dict[int, dict[str, TensorHeader]] | None = None
    """Number of a block, or OUTSIDE -> its tensors in the directory; None if all weights stay loaded."""
    prefix: str = field(init=False)
    blocks: nn.ModuleList = field(init=False)
    """Its blocks, named `prefix`.0, `prefix`.1 and so on."""

    def __post_init__(self):
        self.prefix, self.blocks = layer_list(self.module)

    @classmethod
    def of(cls, model: PreTrainedModel | BlockwiseModel) -> BlockwiseModel:
        """The model itself, or a model in memory as one whose weights are always held."""
        return model if isinstance(model, BlockwiseModel) else cls(model, next(model.parameters()).device)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Holds the weights that are in no block and not in the head."""
        with self._held(OUTSIDE, self.module):
            yield

    @contextmanager
    def block(self, index: int) -> Iterator[nn.Module]:
        """Holds the weights of a block."""
        with self._held(index, self.blocks[index]):
            yield self.blocks[index]

    @contextmanager
    def _held(self, part: int, module: nn.Module) -> Iterator[None]:
        if self.parts is None:
            yield
            return
        before = [
            (owner, name, value)
            for owner in module.modules()
            for name, value in owner.named_parameters(recurse=False, remove_duplicate=False)
        ]
        try:
            _load(self.module, {name: _read(header) for name, header in self.parts[part].items()}, self.dtype, self.device)
            module.requires_grad_(False)
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def load_blockwise(directory: Path, dtype: torch.dtype, device: torch.device) -> BlockwiseModel:
    """The model of a directory for packed rows, in evaluation mode. Raises ModelError like `load_model`, before weights are
    read."""
    if read_config(directory).get("model_type") not in FAMILIES:
        return BlockwiseModel(load_model(directory, dtype, device=device).requires_grad_(False), device)
    try:
        headers = read_directory(directory)
    except TensorFileError as error:
        raise ModelError(str(error)) from error
    model = empty_model(directory, dtype, "packed")
    report = _load(
        model,
        {name: torch.empty(header.shape, dtype=_dtype(header), device="meta") for name, header in headers.items()},
        dtype,
        torch.device("meta"),
    )
    model.mark_tied_weights_as_initialized(report)
    tied = set(model.all_tied_weights_keys)
    if report.missing_keys & set(model.all_tied_weights_keys.values()):  # stored under the name of a tensor tied to them
        return BlockwiseModel(load_model(directory, dtype, device=device).requires_grad_(False), device)
    report.missing_keys -= tied
    model._adjust_missing_and_unexpected_keys(report)
    refuse_wrong_tensors(directory, report.to_dict())
    _compute_buffers(model, device)
    if model.config.model_type not in PACKED:
        separate_documents(model)
    loaded = BlockwiseModel(model.requires_grad_(False).eval(), device, dtype, {})
    loaded.parts = _parts(loaded, headers)
    return loaded


def _parts(model: BlockwiseModel, headers: dict[str, TensorHeader]) -> dict[int, dict[str, TensorHeader]]:
    """The tensors of each block, and of what the decoder computes outside of them."""
    body = f"{model.module.base_model_prefix}." if model.module.base_model is not model.module else ""
    state, mapping = model.module.state_dict(), get_model_conversion_mapping(model.module)
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    parts: dict[int, dict[str, TensorHeader]] = {part: {} for part in (OUTSIDE, *range(len(model.blocks)))}
    for stored, header in headers.items():
        name, _ = rename_source_key(stored, renamings, converters, model.module.base_model_prefix, state)
        if name not in state and stored in state:
            name, _ = rename_source_key(stored, [], [], model.module.base_model_prefix, state)
        if name.startswith(f"{model.prefix}."):
            parts[int(name.removeprefix(f"{model.prefix}.").partition(".")[0])][stored] = header
        elif name in state and name.startswith(body):
            parts[OUTSIDE][stored] = header
    return parts


def _load(model: PreTrainedModel, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device):
    """Gives the model tensors of a checkpoint, by their names there; returns transformers' report."""
    settings = LoadStateDictConfig(
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        device_map={"": device},
        weight_mapping=get_model_conversion_mapping(model),
    )
    report, _ = convert_and_load_state_dict_in_model(model, tensors, settings)
    if report.conversion_errors:
        name = min(report.conversion_errors)
        raise ModelError(f"tensor {name} cannot be made of the checkpoint's tensors; copy the model again")
    return report


@torch.no_grad()
def _compute_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Buffers that are computed, not stored (rotary frequencies, scales of embeddings), as transformers computes them after
    loading."""
    for name, buffer in list(model.named_non_persistent_buffers()):
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.empty_like(buffer, device=device))
    model.initialize_weights()


def _dtype(header: TensorHeader) -> torch.dtype:
    return getattr(torch, TORCH_NAMES[header.dtype])


def _read(header: TensorHeader) -> Tensor:
    """A stored tensor, in memory of its own."""
    return torch.frombuffer(bytearray(header.read()), dtype=_dtype(header)).view(header.shape)
