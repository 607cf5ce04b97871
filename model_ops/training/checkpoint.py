"""Checkpoints of a training run: weights and optimizer state as safetensors, the step as JSON, never pickle.

    <work>/checkpoints/step-00000050/weights.safetensors
                                     optimizer.safetensors
                                     state.json              written last: without it the checkpoint does not exist

The two newest are kept. Random state is not stored: a step's randomness is a function of (seed, step) alone.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from model_ops.errors import ModelError

KEPT = 2


def save_checkpoint(work: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer,
                    state: dict[str, Any]) -> Path:
    """Saves what a run needs to continue after `step` finished steps."""
    folder = work / "checkpoints" / f"step-{step:08d}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    parameters = _trained(model)
    save_file({name: value.detach().cpu().contiguous() for name, value in parameters.items()},
              folder / "weights.safetensors")
    moments = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            moments[f"{key}:{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    save_file(moments, folder / "optimizer.safetensors")
    for path in folder.iterdir():
        _flush(path)
    beside = folder / ".state.json"
    beside.write_text(json.dumps({**state, "step": step}))
    _flush(beside)
    beside.replace(folder / "state.json")
    for old in finished_checkpoints(work)[:-KEPT]:
        shutil.rmtree(old)
    return folder


def finished_checkpoints(work: Path) -> list[Path]:
    """The checkpoints that are whole, oldest first."""
    return sorted(path.parent for path in (work / "checkpoints").glob("step-*/state.json"))


def load_checkpoint(work: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
                    state: dict[str, Any]) -> int:
    """Restores the newest whole checkpoint; returns the steps it had finished, 0 where there is none.

    Raises ModelError when it was written by a run whose `state` (its settings and plan) was another one.
    """
    found = finished_checkpoints(work)
    if not found:
        return 0
    folder = found[-1]
    saved = json.loads((folder / "state.json").read_text())
    step = saved.pop("step")
    wanted = json.loads(json.dumps(state))
    differing = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
    if differing:
        raise ModelError(f"checkpoint {folder} was written with other {', '.join(differing)}; remove it to start anew")
    parameters = _trained(model)
    weights = load_file(folder / "weights.safetensors")
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[0]
        raise ModelError(f"checkpoint {folder} and the model disagree on parameter {odd}; remove it to start anew")
    moments = load_file(folder / "optimizer.safetensors")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for name, parameter in parameters.items():
        keys = [key for key in moments if key.endswith(f":{name}") and key.partition(":")[2] == name]
        on_cpu = {key.partition(":")[0]: moments[key] for key in keys}
        optimizer.state[parameter] = {
            key: value if key == "step" and parameter.device.type == "cpu" else value.to(parameter.device)
            for key, value in on_cpu.items()
        }
    return step


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
