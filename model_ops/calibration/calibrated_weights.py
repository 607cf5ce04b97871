"""The int4 codes of a model's Linear layers, chosen by GPTQ for what the layers read in calibration rows.

    stored = calibrated_weights(model, layers, kind, batches, folder)     # layer in the checkpoint -> its stored tensors

Each block's tensors are written when it is done (folder/block-7.safetensors): a run that was stopped computes no block twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from model_ops.atomic_files import renamed_when_complete
from model_ops.batch import Batch
from model_ops.calibration.walk import Block, walk
from model_ops.quantization.gptq import gptq
from model_ops.quantization.int4_linear import Int4Linear, group_scales


@dataclass(frozen=True)
class LayerError:
    """Mean squared error of a layer's outputs on the calibration rows, over the mean square of its outputs.

    rounded: with every weight rounded to the nearest code. calibrated: with GPTQ's.
    """

    layer: str
    rounded: float
    calibrated: float


@dataclass(frozen=True)
class Calibrated:
    """files: layer in the checkpoint -> file that holds its stored tensors. errors: of the blocks computed in this process."""

    files: dict[str, Path]
    errors: list[LayerError]

    def stored(self, layer: str, parts: Sequence[str]) -> dict[str, Tensor]:
        """A layer's stored tensors."""
        from safetensors import safe_open

        with safe_open(self.files[layer], framework="pt") as tensors:
            return {part: tensors.get_tensor(f"{layer}.{part}") for part in parts}


def calibrated_weights(model: PreTrainedModel, linear: Mapping[str, str], kind: type[Int4Linear], batches: Sequence[Batch],
                       folder: Path, after_block: Callable[[int, int], None] | None = None) -> Calibrated:
    """Chooses codes block by block. linear: layer in the checkpoint -> module. The model's weights become the quantized ones.

    after_block(blocks done, blocks in all).
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {module: layer for layer, module in linear.items()}
    files, errors = {}, []
    for block in walk(model, batches, names):
        file = folder / f"block-{block.index}.safetensors"
        if file.exists():
            tensors = load_file(file)
            for module in block.layers:
                layer = names[module]
                parts = {part: tensors[f"{layer}.{part}"] for part in ("weight_packed", "weight_scale", "weight_shape")}
                block.replace(module, kind.decode(parts))
        else:
            tensors = {}
            for module, stored, error in _of_block(block, kind):
                tensors |= {f"{names[module]}.{part}": tensor.cpu().contiguous() for part, tensor in stored.items()}
                errors.append(LayerError(names[module], *error))
                block.replace(module, kind.decode(stored))
            with renamed_when_complete(file) as temporary:
                save_file(tensors, temporary)
        files |= {names[module]: file for module in block.layers}
        if after_block is not None:
            after_block(block.index + 1, model.config.num_hidden_layers)
    return Calibrated(files, errors)


def _of_block(block: Block, kind: type[Int4Linear]):
    """(module, stored tensors, (error of rounding, error of GPTQ)) of every layer. Layers with one input are one matrix."""
    moments = block.moments()
    together: dict[int, list[str]] = {}
    for module in block.layers:
        together.setdefault(id(moments[module]), []).append(module)
    for modules in together.values():
        moment = moments[modules[0]]
        weight = torch.cat([block.layers[module].weight.detach().float() for module in modules])
        scales = group_scales(weight, kind.GROUP_SIZE, moment.diagonal())
        codes = gptq(weight, moment, scales)
        start = 0
        for module in modules:
            rows = slice(start, start + block.layers[module].weight.shape[0])
            start = rows.stop
            stored = kind.stored_parts(codes[rows], scales[rows])
            plain = kind.encode(weight[rows])
            yield module, stored, tuple(_error(kind.decode(each).to(moment.device), weight[rows], moment)
                                        for each in (plain, stored))


def _error(found: Tensor, wanted: Tensor, moment: Tensor) -> float:
    """E |(found - wanted) x|^2 / E |wanted x|^2."""
    change = found - wanted
    of_output = ((wanted @ moment) * wanted).sum()
    return float((((change @ moment) * change).sum() / of_output.clamp(min=1e-20)).clamp(min=0))
