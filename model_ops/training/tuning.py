"""Loads a model for full fine-tuning (float32 master weights), LoRA (frozen weights in the precision of the products) or QLoRA
(in 4 bits), and saves the result. Adapters, float32, are merged into the output's weights, so that later stages get an ordinary
model, and are also in its adapter/ in PEFT's format."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.adapters import (
    adapted_parameters,
    add_adapters,
    frozen_parameter,
    merge_adapters,
    merged_weights,
    nf4_layers,
    quantization_error,
    quantized_parameters,
    save_adapter,
)
from model_ops.families import stays_float32
from model_ops.jobs import ModelError, Progress, filled
from model_ops.machine import products_dtype
from model_ops.models import load_model, read_config, save_model
from model_ops.parallel import World, leads, local_part, wait_for_all, whole_tensor, whole_tensors
from model_ops.tensors import round_weight, saved_update
from model_ops.training.trainer import TrainingResult
from model_ops.training.tuning_settings import TuningSettings

ADAPTER = "adapter"
MOST_LOST = 0.3
"""Share of what the held-out loss gained that rounding may undo without a warning."""
LOST = (
    "the held-out loss fell from {before:.4f} to {trained:.4f}, and is {after:.4f} with the weights as saved in bfloat16: the "
    "updates are too small for it. Train longer or at a higher learning_rate"
)
Headed = Callable[[PreTrainedModel], PreTrainedModel]
"""Puts another head on a loaded model, which is trained whole by every method."""


def load_to_tune(
    base: Path, settings: TuningSettings, device: torch.device, headed: Headed = lambda model: model
) -> tuple[PreTrainedModel, dict[str, float | int]]:
    """Loads the model in `base` and marks its trained parameters; also returns their counts. Raises ModelError if the base is
    quantized, a LoRA target matches nothing, or the mesh cannot shard its adapters."""
    scheme = read_config(base).get("quantization_config")
    if scheme is not None:
        raise ModelError(
            f"{base} is quantized ({scheme.get('quant_method', 'unknown')}); {settings.method} fine-tuning starts "
            "from unquantized weights: give the model before quantization"
            + ("" if settings.method == "full" else ", method: qlora quantizes it by itself")
        )
    if settings.method == "full":
        model = headed(load_model(base, device=device))
        return model, {"trained_parameters": sum(parameter.numel() for parameter in model.parameters())}
    kind = {"kind": nf4_layers()} if settings.method == "qlora" else {}
    if kind and torch.device(device).type == "meta":
        device = torch.device("cpu")  # every process quantizes the values itself
    held = products_dtype(settings.precision, device)
    model = load_model(base, dtype=held, device=device)
    counts = add_adapters(model, filled(settings.lora), settings.seed, **kind)
    if max(settings.mesh.tp, settings.mesh.ep) > 1 and adapted_parameters(model):
        raise ModelError(
            "adapters of experts and routers do not support tensor or expert parallelism; set tp and ep to 1, or "
            "leave them out of lora.targets"
        )
    model = headed(model)
    numbers: dict[str, float | int] = {
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "frozen_parameters": counts.frozen_parameters,
        "adapted_layers": counts.adapted_layers,
        "parameters_without_adapter_in_experts": counts.left_out_parameters,
    }
    if settings.method == "qlora":
        numbers |= {"nf4_parameters": quantized_parameters(model), "nf4_error": quantization_error(model)}
    return model, numbers


def save_tuned(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    base: Path,
    settings: TuningSettings,
    output: Path,
    headed: Headed = lambda model: model,
) -> dict[str, float]:
    """Writes the trained model, a merged model's weights last. Returns `saved_update`: the share of the training's update that
    the written weights hold (saved_update). With several processes all of them call this; the first one gathers the adapters
    and merges them into a newly read base."""
    if settings.method == "full":
        save_model(model, tokenizer, output)
        return {"saved_update": _saved_update(model, base, output)}
    adapters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if any(isinstance(parameter, DTensor) for parameter in adapters.values()):
        gathered = whole_tensors(adapters, keep=leads(), to=torch.float32)
        numbers = {}
        if leads():
            whole, _ = load_to_tune(base, settings, torch.device("cpu"), headed)
            whole.generation_config = model.generation_config
            with torch.no_grad():
                for name, parameter in whole.named_parameters():
                    if parameter.requires_grad:
                        parameter.copy_(gathered[name])
            numbers = save_tuned(whole, tokenizer, base, settings, output, headed)
        wait_for_all()
        return numbers
    save_adapter(model, filled(settings.lora), output / ADAPTER, str(base))
    held = merge_adapters(model)
    save_model(model, tokenizer, output)
    return {"saved_update": held}


def validated_as_saved(
    model: PreTrainedModel,
    validate: Callable[[], dict[str, float]] | None,
    result: TrainingResult,
    world: World,
    progress: Progress,
    phase: str,
) -> dict[str, float]:
    """After the model was saved: rounds its weights in place to what the file holds, and returns the validation of these as
    `saved_validation_loss` and the like. Warns where rounding undid more than MOST_LOST of what the training gained. No numbers
    without held-out rows, and for QLoRA with several processes: each would hold all merged weights, four times those in nf4."""
    quantized = quantized_parameters(model) > 0
    if not quantized:
        _merge_as_saved(model)
    _round_as_saved(model, torch.float32 if result.precision == "float32" else None)
    if validate is None or quantized:
        return {}
    with torch.no_grad():
        saved = world.evaluate(model, validate)
    before, trained, after = (each.get("validation_loss", math.nan) for each in (result.before, result.validation, saved))
    if trained < before and after - trained > MOST_LOST * (before - trained):
        progress.event("warning", message=f"{phase}: {LOST.format(before=before, trained=trained, after=after)}")
    return {f"saved_{name}": value for name, value in saved.items()}


@torch.no_grad()
def _merge_as_saved(model: PreTrainedModel) -> None:
    """Merges adapters that are left, those of several processes, into the frozen weights, of which each has a part, as the
    first process merged them for the file. The adapters stay and change nothing."""
    for name, exact in merged_weights(model):
        _put(frozen_parameter(model, name), round_weight(exact, torch.bfloat16, name))
    for name, parameter in model.named_parameters():
        if name.endswith(".lora_B"):
            local_part(parameter).zero_()


def _put(parameter: nn.Parameter, whole: Tensor) -> None:
    """Writes this process's part of a whole tensor into a parameter."""
    if isinstance(parameter, DTensor):
        whole = local_part(distribute_tensor(whole.to(parameter.dtype), parameter.device_mesh, parameter.placements))
    local_part(parameter).copy_(whole)


@torch.no_grad()
def _round_as_saved(model: PreTrainedModel, held: torch.dtype | None) -> None:
    """Rounds weights to those of the saved files, whole ones into the dtype `held` (None: they keep theirs). Adapters that are
    sharded over processes stay."""
    for name, parameter in model.named_parameters():
        mine, wanted = local_part(parameter), torch.float32 if stays_float32(model, name) else torch.bfloat16
        if mine is parameter:
            parameter.data = round_weight(parameter.data, wanted, name).to(held or parameter.dtype)
        elif ".lora_" not in name:
            _put(parameter, round_weight(whole_tensor(parameter.detach()), wanted, name))


def _saved_update(model: PreTrainedModel, base: Path, output: Path) -> float:
    """Of a model that was trained whole, over the weights that both directories have by the same name and shape. All processes
    call this."""
    before, after, held, wanted = _tensors(base), _tensors(output), 0.0, 0.0
    for name, value in model.state_dict().items():
        if name in model.all_tied_weights_keys or not value.is_floating_point():
            continue
        [exact] = whole_tensors({name: value}, keep=True, to=torch.float32).values()
        if name in before and name in after and (old := before[name](name)).shape == exact.shape:
            along, size = saved_update(old, exact, after[name](name))
            held, wanted = held + along, wanted + size
    return held / wanted if wanted else 1.0


def _tensors(directory: Path) -> dict[str, Callable[[str], Tensor]]:
    """Name of each tensor of a directory -> what reads it."""
    files = [safe_open(path, framework="pt") for path in sorted(directory.glob("*.safetensors"))]
    return {name: file.get_tensor for file in files for name in file.keys()}  # noqa: SIM118 (not a dict)
