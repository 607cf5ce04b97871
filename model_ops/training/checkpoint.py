"""Asynchronous checkpoints of a training run: complete or absent, readable on any number of processes.

    <work>/checkpoints/step-00000050/shard-00000.safetensors   weights and optimizer state of each process
                                     tensors.json              index: file and offset of every part of every tensor
                                     state.json                written last: without it the checkpoint does not exist

A checkpoint holds the trained parameters (of a LoRA run the adapters) and their optimizer state. Schedule, data and randomness
are functions of the step: the trainer seeds every generator with (seed, step). state.json holds the step, the run's settings,
the state of recovery, loss and batch source, and length and digest of every file. All of it is checked before a checkpoint is
used; a damaged one is reported and the one before it used. Nothing is unpickled.

A thread writes the tensors while the next step computes. What is not written when the next update begins is copied first, into
half of the available host memory at most; the update waits for the rest. The next save waits for the one in progress."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import xxhash
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.tensor import DTensor

from model_ops.files import renamed_when_complete
from model_ops.jobs import ModelError, Progress, filled
from model_ops.parallel import World
from model_ops.training.settings import TrainingSettings
from model_ops.training.shards import ShardReader, ShardWriter, Snapshot, damage, host_memory_for_copies, pin_ahead

FORMAT = 2
"""Version of the file format; 1 was weights.safetensors and optimizer.safetensors without digests."""
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Module names that compiling or wrapping adds to a parameter's name; checkpoints leave them out."""

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class Checkpoints:
    """The checkpoints of one run, under `work`. Every process of `world` creates one and makes the same calls. run: phase,
    settings and number of steps; a checkpoint with another `run` is refused."""

    def __init__(
        self,
        work: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: dict[str, Any],
        settings: TrainingSettings,
        world: World,
        progress: Progress,
    ):
        self.folder = work / "checkpoints"
        self.parameters = {
            _plain_name(name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        self.optimizer = optimizer
        self.run = json.loads(json.dumps(run))
        self.settings, self.world, self.progress = settings, world, progress
        self._group = torch.distributed.new_group(backend="gloo") if world.size > 1 else None
        self._saving: threading.Thread | None = None
        self._error: BaseException | None = None
        self._snapshot: Snapshot | None = None
        self._host_bytes: int | None = None
        self._pinning: threading.Thread | None = None
        self._saved_step, self._saved_at_s = 0, time.monotonic()
        self._broken: set[Path] = set()
        self._hook = optimizer.register_step_pre_hook(lambda *_: self._detach())

    def load(self) -> tuple[int, dict[str, Any]]:
        """Restores the newest complete checkpoint; returns its number of finished steps and the saved state. (0, {}) if there
        is none. Raises ModelError if another run wrote it, or if it is for another model."""
        newest = self._newest_whole() if self.world.leads else -1
        step = int(self.world.greatest([newest])[0])
        if step < 0:
            return 0, {}
        folder = self.folder / _name(step)
        saved = read_state(folder)
        differing = _differing(saved["run"], self.run)
        if differing:
            raise ModelError(f"checkpoint {folder} was written with other {', '.join(differing)}; delete it to start again")
        reader = ShardReader(folder)
        self._refuse_other_parameters(folder, reader)
        targets = {f"weights.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        state: dict[str, dict[str, Any]] = {name: {} for name in self.parameters}
        for name, entry in reader.index.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                key, _, parameter = rest.partition(".")
                targets[name] = state[parameter][key] = self._empty(parameter, key, entry)
        for name, value in saved["numbers"].items():
            key, _, parameter = name.partition(".")
            state[parameter][key] = value
        dcp.load(
            targets,
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            process_group=self._group,
            no_dist=self._group is None,
        )
        for name, parameter in self.parameters.items():
            if state[name]:
                self.optimizer.state[parameter] = state[name]
        self._saved_step = step
        return step, saved["state"]

    def after_step(self, done: int, state: dict[str, Any], stop: bool = False) -> bool:
        """Saves after `done` steps if a save is due; returns True if the run should stop now, after saving. A save is due every
        `checkpoint_every` steps and `checkpoint_seconds` after the last one. A stop that one process received stops all of
        them. Raises ModelError if an earlier save failed."""
        late = time.monotonic() - self._saved_at_s >= self.settings.checkpoint_seconds
        any_stop, any_late, any_failed = self.world.greatest([stop, self.world.leads and late, self._error is not None])
        if any_failed:
            self._raise_error()
        last = done == self.run["steps"]
        if any_stop and not last:
            self._save(done, state)
            self.wait()
            return True
        if done % filled(self.settings.checkpoint_every) == 0 or (any_late and not last):
            self._save(done, state)
        return False

    def __enter__(self) -> Checkpoints:
        if self.run["steps"] >= self.settings.checkpoint_every:
            self._host_bytes = host_memory_for_copies()
            self._pinning = pin_ahead(self._tensors()[0], self._host_bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the save in progress; raises ModelError if it failed, unless the run itself failed. After an error of the
        run, several processes do not wait: a save needs all of them, and the error must be reported."""
        if kind is None:
            self.wait()
        elif self._saving is not None and self.world.size == 1:
            self._saving.join()
        self._hook.remove()

    def _save(self, step: int, state: dict[str, Any]) -> None:
        self.wait()
        tensors, numbers = self._tensors()
        state = json.loads(json.dumps(state))  # a copy: the thread writes it during the next steps
        described = {
            "format": FORMAT,
            "step": step,
            "run": self.run,
            "state": state,
            "numbers": numbers,
            "processes": self.world.size,
            "versions": {"torch": str(torch.__version__)},
        }
        if self._host_bytes is None:
            self._host_bytes = host_memory_for_copies()
        if self._pinning is not None:
            self._pinning.join()
        self._snapshot = Snapshot(tensors, self._host_bytes)
        folder = self.folder / _name(step)
        writer = ShardWriter(folder, self._snapshot, partial(self._publish, folder, described))
        self._saved_step, self._saved_at_s = step, time.monotonic()
        self._saving = threading.Thread(target=self._write, args=(tensors, writer, self._snapshot), name=f"checkpoint {step}")
        self._saving.start()

    def _write(self, tensors: dict[str, Tensor], writer: ShardWriter, snapshot: Snapshot) -> None:
        try:
            dcp.save(
                tensors,
                storage_writer=writer,
                planner=DefaultSavePlanner(flatten_state_dict=False),
                process_group=self._group,
                no_dist=self._group is None,
            )
        except BaseException as error:  # the thread's boundary: the run's own thread raises it
            self._error = error
        finally:
            snapshot.end()

    def _publish(self, folder: Path, described: dict[str, Any], files: dict[str, dict[str, Any]]) -> None:
        """Completes the checkpoint by writing state.json, and deletes checkpoints beyond `keep_checkpoints`."""
        described = {**described, "files": files}
        with renamed_when_complete(folder / "state.json", flush=True) as temporary:
            temporary.write_text(json.dumps({**described, "xxh3": _digest(described)}, indent=1))
        for directory in (folder, self.folder, self.folder.parent):
            _flush(directory)
        others = sorted(path for path in self.folder.glob("step-*") if path != folder)
        whole = [path for path in others if (path / "state.json").exists() and path not in self._broken and path < folder]
        newest = whole[max(0, len(whole) - self.settings.keep_checkpoints + 1) :]
        for old in others:
            if old not in newest:
                (old / "state.json").unlink(missing_ok=True)  # first, so that a partly deleted folder does not count
                shutil.rmtree(old)

    def wait(self) -> None:
        """Waits for the save in progress; raises ModelError if it failed."""
        if self._saving is not None:
            self._saving.join()
            self._saving = self._snapshot = None
        if self._error is not None:
            self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        step = self._saved_step
        if error is None:
            raise ModelError(f"the checkpoint of step {step} could not be written by another process; see its error")
        raise ModelError(
            f"the checkpoint of step {step} could not be written: {_cause(error)}; check the disk and run again, "
            "earlier checkpoints are kept"
        ) from error

    def _detach(self) -> None:
        if self._snapshot is not None:
            self._snapshot.detach()

    def _newest_whole(self) -> int:
        """The step of the newest complete checkpoint, -1 for none; warns about damaged ones after it."""
        folders = sorted(self.folder.glob("step-*"), reverse=True)
        for folder in folders:
            problem = _problem(folder)
            if problem is None:
                return read_state(folder)["step"]
            self._broken.add(folder)
            self._warn(f"checkpoint {folder.name} is ignored: {problem}")
        if folders:
            self._warn("no checkpoint is whole: the run starts anew")
        return -1

    def _warn(self, message: str) -> None:
        self.progress.event("warning", phase=self.run["phase"], message=message)

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The content of a checkpoint: tensors by name, and optimizer state that is plain numbers."""
        tensors, numbers = {f"weights.{name}": parameter.detach() for name, parameter in self.parameters.items()}, {}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    if isinstance(parameter, DTensor) and value.ndim and not isinstance(value, DTensor):
                        raise ModelError(
                            f"{type(self.optimizer).__name__} has a different {key} of {name} in each process, "
                            "which a checkpoint cannot hold: choose another optimizer or one process"
                        )
                    tensors[f"optimizer.{key}.{name}"] = value.detach()
                elif isinstance(value, int | float):
                    numbers[f"{key}.{name}"] = value
                elif value is not None:
                    raise ModelError(
                        f"{type(self.optimizer).__name__} keeps {key} of {name} as {type(value).__name__}, "
                        "which a checkpoint cannot hold; choose another optimizer"
                    )
        return tensors, numbers

    def _empty(self, name: str, key: str, entry: dict[str, Any]) -> Tensor:
        """An empty tensor for one entry of the optimizer's state, sharded like its parameter if it has the same shape."""
        parameter = self.parameters[name]
        dtype, shape = ShardReader.dtype(entry), tuple(entry["shape"])
        if shape == tuple(parameter.shape):
            return torch.empty_like(parameter.detach(), dtype=dtype)
        group = next(group for group in self.optimizer.param_groups if any(p is parameter for p in group["params"]))
        on_device = key != "step" or group.get("fused") or group.get("capturable")
        return torch.empty(shape, dtype=dtype, device=parameter.device if on_device else "cpu")

    def _refuse_other_parameters(self, folder: Path, reader: ShardReader) -> None:
        saved = {
            name.removeprefix("weights."): tuple(entry["shape"])
            for name, entry in reader.index.items()
            if name.startswith("weights.")
        }
        mine = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}
        odd = sorted(name for name in saved.keys() | mine.keys() if saved.get(name) != mine.get(name))
        if odd:
            raise ModelError(f"checkpoint {folder} and the model disagree on parameter {odd[0]}; delete it to start again")


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint. Raises ValueError if it was changed or damaged."""
    state = json.loads((folder / "state.json").read_text())
    if not isinstance(state, dict) or state.pop("xxh3", None) != _digest(state):
        raise ValueError("state.json is not what was written")
    return state


def _problem(folder: Path) -> str | None:
    if not (folder / "state.json").exists():
        return "it was still being written when its run ended"
    try:
        state = read_state(folder)
    except ValueError:
        return "state.json is not what was written (damaged, or by an earlier version)"
    if state["format"] != FORMAT:
        return f"its format is {state['format']}, this version reads {FORMAT}"
    return damage(folder, state["files"])


def _differing(saved: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    differing = sorted(name for name in saved.keys() | mine.keys() if saved.get(name) != mine.get(name))
    if "settings" in differing:
        one, other = saved.get("settings", {}), mine.get("settings", {})
        names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        differing[differing.index("settings")] = f"settings ({', '.join(names)})"
    return differing


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _digest(state: dict[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _cause(error: BaseException) -> str:
    """The first line of the first process's error; DCP wraps the errors of all processes into one exception."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
