"""Creates a drafter from its settings, or from a saved directory."""

import json
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model_ops.decoding import Runner
from model_ops.jobs import ModelError
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.registry import ARCHITECTURES, architecture_of
from model_ops.speculators.settings import SpeculatorSettings


def new_draft_model(settings: SpeculatorSettings, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> DraftModel:
    """A new drafter on the target's device, initialised from the target where possible; seeded by settings.seed. settings:
    resolved. Raises ModelError if the architecture does not fit the target."""
    torch.manual_seed(settings.seed)
    model = ARCHITECTURES[settings.architecture].model_class().new(settings, target, target_ids)
    model.kind = settings.architecture
    return model


def load_draft_model(directory: Path, dtype: torch.dtype = torch.float32) -> DraftModel:
    """Loads the drafter in a directory, in evaluation mode, with weights in `dtype`. Raises ModelError if a file is missing,
    config.json is of no known architecture, or a tensor does not fit."""
    try:
        raw = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
    except FileNotFoundError as error:
        raise ModelError(f"{error.filename} is missing, so {directory} is not a drafter: give a drafter's directory") from error
    except SafetensorError as error:
        raise ModelError(f"{directory / 'model.safetensors'} is truncated or damaged ({error}): copy it again") from error
    except ValueError as error:
        raise ModelError(f"{directory / 'config.json'} is not JSON: copy it again") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{directory / 'config.json'} is not a JSON object: copy it again")
    architecture = architecture_of(raw)
    if architecture is None:
        raise ModelError(f"{directory} is {raw.get('architectures')}, which is not a supported drafter")
    try:
        model = architecture.model_class().from_config(directory, raw)
    except (KeyError, TypeError, ValueError) as error:  # such as a rotary type that transformers does not know
        raise ModelError(
            f"{directory / 'config.json'} holds an invalid value ({type(error).__name__}: {error}): copy it again"
        ) from error
    model.kind = architecture.name
    weights, expected = model.stored(weights), model.state_dict()
    for name, tensor in expected.items():
        if name not in weights or weights[name].shape != tensor.shape:
            shape = "is missing" if name not in weights else f"is {list(weights[name].shape)}"
            raise ModelError(f"{directory}: {name} {shape}, but config.json requires {list(tensor.shape)}: copy both again")
    model.load_state_dict({name: weights[name] for name in expected})
    return model.ready_to_draft(dtype)
