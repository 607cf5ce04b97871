"""The codes of a model's Linear layers, those of int4 chosen by GPTQ for what the layers read in calibration rows.

    found = calibrated_weights(model, linear, schemes, batches, folder)
    found.stored(layer, parts)                                  # a layer's stored tensors, by its name in the checkpoint

Layers of other schemes are rounded to the nearest, in their turn: later blocks are calibrated on what they will read.

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
from model_ops.quantization.int4_linear import group_scales
from model_ops.quantization.scheme import Scheme


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


def calibrated_weights(model: PreTrainedModel, linear: Mapping[str, str], schemes: Mapping[str, Scheme],
                       batches: Sequence[Batch], folder: Path,
                       after_block: Callable[[int, int], None] | None = None) -> Calibrated:
    """Chooses codes block by block. linear: layer in the checkpoint -> module. schemes: layer -> its scheme; layers without one
    stay as they are. The model's weights become the quantized ones.

    after_block(blocks done, blocks in all).
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {module: layer for layer, module in linear.items() if layer in schemes}
    files, errors = {}, []
    for block in walk(model, batches, names):
        file = folder / f"block-{block.index}.safetensors"
        if file.exists():
            tensors = load_file(file)
            for module, layer in block.layers.items():
                scheme = schemes[names[module]]
                parts = {part: tensors[f"{names[module]}.{part}"] for part in scheme.stored(*layer.weight.shape)}
                block.replace(module, scheme.load_layer().decode(parts))
        else:
            tensors = {}
            for module, stored, error in _of_block(block, {module: schemes[names[module]] for module in block.layers}):
                tensors |= {f"{names[module]}.{part}": tensor.cpu().contiguous() for part, tensor in stored.items()}
                if error is not None:
                    errors.append(LayerError(names[module], *error))
                block.replace(module, schemes[names[module]].load_layer().decode(stored))
            with renamed_when_complete(file) as temporary:
                save_file(tensors, temporary)
        files |= {names[module]: file for module in block.layers}
        if after_block is not None:
            after_block(block.index + 1, model.config.num_hidden_layers)
    return Calibrated(files, errors)


def _of_block(block: Block, schemes: Mapping[str, Scheme]):
    """(module, stored tensors, (error of rounding, error of GPTQ) or None) of every layer. Layers of one scheme that read the
    same tensor are one matrix."""
    together: dict[tuple[int, str], list[str]] = {}
    for module, scheme in schemes.items():
        if scheme.calibrated:
            together.setdefault((id(block.moments()[module]), scheme.name), []).append(module)
        else:
            yield module, scheme.load_layer().encode(block.layers[module].weight.detach().float()), None
    for modules in together.values():
        kind, moment = schemes[modules[0]].load_layer(), block.moments()[modules[0]]
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
