"""The training loop, independent of the objective: a source gives the batches of a step, a loss computes what to minimise. A
killed run continues from its checkpoint under `work` and ends with bit-identical weights (on CUDA with
`settings.deterministic`). Terms are summed over all micro-batches before they are divided by their counts. metrics.jsonl, next
to `work`, gets one line per step."""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from model_ops.files import renamed_when_complete
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.machine import Concrete, concrete, concrete_precision, faster_on, give_back_memory, products_in
from model_ops.parallel import World
from model_ops.tensors import (
    IGNORED,
    AnyBatch,
    Batch,
    BatchSource,
    KindOfBatch,
    LearningLoss,
    Loss,
    StatefulSource,
    use_memory_efficient_layers,
)
from model_ops.training.activations import checkpoint_activations
from model_ops.training.checkpoint import Checkpoints
from model_ops.training.optimizers import build_optimizer, learning_rate_at, reserve_state, state_bytes
from model_ops.training.qk_clip import QkClip
from model_ops.training.recovery import Recovery
from model_ops.training.settings import SAME_RESULTS, TrainingSettings
from model_ops.training.step import StepBatches, optimizer_step
from model_ops.training.step_meter import StepMeter, peak_memory_mb


@runtime_checkable
class WeighedPlan(BatchSource[KindOfBatch], Protocol[KindOfBatch]):
    """A BatchSource that knows its micro-batch with the highest memory."""

    def heaviest(self, rank: int = 0, ranks: int = 1) -> KindOfBatch:
        """The micro-batch of data rank `rank` of `ranks`; every rank gets one."""


def dry_run(
    model: nn.Module,
    plan: BatchSource[AnyBatch],
    loss: Loss[AnyBatch],
    optimizer: torch.optim.Optimizer,
    settings: TrainingSettings,
    world: World,
) -> AnyBatch | None:
    """Runs the heaviest micro-batch forward and backward and returns it; None if the plan does not know it. Raises ModelError,
    with the size of the micro-batch and remedies, if memory does not suffice."""
    if not isinstance(plan, WeighedPlan):
        return None
    batch = plan.heaviest(world.data_rank, world.data_ranks)
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    training = model.training
    devices = [world.device] if world.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            model.train()
            _forward_and_backward(model, batch.to(world.device), loss, optimizer, settings, world)
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError; on the CPU it is a plain one
        if not _out_of_memory(error):
            raise
        raise ModelError(_does_not_fit(batch, world)) from error
    finally:
        model.train(training)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return batch


def _forward_and_backward(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss[AnyBatch],
    optimizer: torch.optim.Optimizer,
    settings: TrainingSettings,
    world: World,
) -> None:
    held = torch.empty(state_bytes(optimizer), dtype=torch.uint8, device=world.device)
    with products_in(settings.precision, world.device):
        output = world.run(loss, model, batch)
    minimised: torch.Tensor = sum(term.sum for term in output.terms.values())
    minimised.backward()
    del held


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        said in str(error).lower() for said in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _does_not_fit(batch: Batch, world: World) -> str:
    targets = int((batch.labels != IGNORED).sum())
    return (
        f"the heaviest micro-batch ({batch.tokens} tokens, {targets} of them targets, in {len(batch.document_lengths)} "
        f"documents of at most {max(batch.document_lengths, default=0)}) does not fit into the memory of {world.device}; "
        "lower micro_batch_tokens or max_length, or set activation_checkpointing"
    )


@contextmanager
def sparse_lookup_gradients(model: nn.Module, world: World) -> Iterator[None]:
    """Context manager: lookups of a tied embedding have sparse gradients. Does nothing for sharded or untied models."""
    embedding = _tied_embedding(model) if world.mesh is None else None
    if embedding is None:
        yield
        return
    embedding.sparse = True
    try:
        yield
    finally:
        embedding.sparse = False


def _tied_embedding(model: nn.Module) -> nn.Embedding | None:
    if not hasattr(model, "get_output_embeddings"):
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = isinstance(embedding, nn.Embedding) and embedding.max_norm is None and not embedding.scale_grad_by_freq
    tied = plain and head is not None and getattr(head, "weight", None) is embedding.weight
    return embedding if tied and embedding.weight.requires_grad and not embedding.sparse else None


MAY_CHANGE = {*SAME_RESULTS, "on_bad_step"}
"""Settings that may differ when a run continues. on_bad_step is safe: a run that stopped at a bad step has not skipped any."""
SHOWN = ("loss", "pass_rate", "reward")
"""Numbers of a step that its progress shows."""
DRAWS_APART = 2_654_435_761
"""Distance between the seeds of processes with different tokens; its multiples spread over the 32 bits that generators use."""


@dataclass(frozen=True)
class TrainingResult:
    """Results of a finished run. loss: mean over the last tenth of its steps, also across restarts, without skipped steps.
    Skipped steps (Recovery) are counted over the whole run. steps: that were trained."""

    steps: int
    resumed_from: int
    loss: float
    tokens: int
    seconds: float
    tokens_per_second: float
    peak_memory_mb: float
    validation: dict[str, float]
    precision: Concrete
    before: dict[str, float] = field(default_factory=dict)
    """Validation before the first step, where that was asked."""
    skipped_steps: int = 0

    def metrics(self, counts: Mapping[str, float | int | str]) -> dict[str, float | int | str]:
        """Metrics of a training operation: the run's numbers, validation, and the operation's own `counts`. Raises ValueError
        if two of them share a name."""
        numbers = asdict(self)
        numbers.update(numbers.pop("validation"))
        numbers.update({f"before_{name}": value for name, value in numbers.pop("before").items()})
        taken = numbers.keys() & counts.keys()
        if taken:
            raise ValueError(f"two metrics share the names {', '.join(sorted(taken))}; rename one of them")
        return {**numbers, **counts}


def train(
    model: nn.Module,
    batches: BatchSource[AnyBatch],
    loss: Loss[AnyBatch],
    settings: TrainingSettings,
    work: Path,
    progress: Progress,
    phase: str,
    validate: Callable[[], dict[str, float]] | None = None,
    validate_every: int | None = None,
    world: World | None = None,
    validate_first: bool = False,
) -> TrainingResult:
    """Trains `model` in place through every step of `batches`, continuing from the newest checkpoint under `work`.

    In a `world` of several processes, each calls this with its part of the model and takes its share of the rows.
    settings: resolved. validate: runs after every `validate_every` steps (None: never) and after the last step; its
    numbers are logged and the last ones returned. validate_first: also before the first step. A new run tries its heaviest
    micro-batch first (`dry_run`), unless settings say otherwise. Raises Stopped after saving if a stop was
    requested, and ModelError if a step's numbers are not finite and `on_bad_step` is not skip."""
    steps = len(batches)
    if steps == 0:
        raise ModelError(f"{phase}: no row holds a token to predict, so there is nothing to train on; check the dataset")
    world = world or World.alone(next(model.parameters()).device)
    device, settings = world.device, concrete(settings, world.device)
    use_memory_efficient_layers(model)
    idle = checkpoint_activations(model, settings.activation_checkpointing, settings.offload_activations)
    slow = settings.precision == "bfloat16" and world.leads and faster_on(device) == "float32"
    for said in (idle, "this machine multiplies bfloat16 slower than float32: leave precision out" if slow else None):
        if said is not None:
            progress.event("note", message=f"{phase}: {said}")
    optimizer, qk_clip = build_optimizer(model, settings), QkClip(model, settings, world)
    run = {"phase": phase, "settings": _fixed(settings), "steps": steps}
    checkpoints = Checkpoints(work, model, optimizer, run, settings, world, progress)
    first, state = checkpoints.load()
    if first == 0 and settings.dry_run:
        with sparse_lookup_gradients(model, world), deterministic_kernels(settings.deterministic, device), qk_clip.watch():
            dry_run(model, batches, loss, optimizer, settings, world)
        qk_clip.after_step(changed=False)
    give_back_memory()
    reserve_state(optimizer)
    recovery = Recovery(settings, world, progress, state)
    learning = loss if isinstance(loss, LearningLoss) else None
    if learning is not None and "learned" in state:
        learning.resume(state["learned"])
    stateful = batches if isinstance(batches, StatefulSource) else None
    if stateful is not None and "source" in state:
        stateful.resume(state["source"])
    log = MetricsLog(work.parent / "metrics.jsonl" if world.leads else None, phase, first)
    validate_every = validate_every or steps
    validation: dict[str, float] = {}
    before: dict[str, float] = state.get("before", {})
    losses, tokens, started_s = [], 0, time.monotonic()
    steps_data, meter = StepBatches(batches, world, first), StepMeter(model, world, settings.precision)
    if first == 0 and validate_first and validate is not None:
        before = _evaluate(model, validate, world)
    model.train()
    with checkpoints, deterministic_kernels(settings.deterministic, device):
        for index in range(first, steps):
            step_started_s = time.monotonic()
            _seed_all(settings.seed * 1_000_003 + index + world.rng_stream * DRAWS_APART)
            data = steps_data.take(index)
            learning_rate = learning_rate_at(index, steps, settings)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            with sparse_lookup_gradients(model, world):
                numbers = optimizer_step(
                    model, data.batches, loss, optimizer, settings, world, f"{phase} step {index}", recovery, qk_clip.watch
                )
            numbers.update(qk_clip.after_step(changed="skipped" not in numbers))
            measured = meter.numbers(data, time.monotonic() - step_started_s)
            tokens += int(measured["tokens"])
            shown = {}
            if "skipped" not in numbers:
                losses.append(numbers["loss"])
                if learning is not None:
                    learning.after_step(numbers)
                shown = {name: numbers[name] for name in SHOWN if math.isfinite(numbers.get(name, math.nan))}
            done = index + 1
            if validate is not None and (done % validate_every == 0 or done == steps):
                validation = _evaluate(model, validate, world)
                numbers.update(validation)
            log.write({"phase": phase, "step": done, **numbers, "learning_rate": learning_rate, **measured})
            progress.report(phase, done, steps, "steps", **shown, **measured)
            remembered = {
                **recovery.state(),
                **({} if learning is None else {"learned": learning.state()}),
                **({"before": before} if before else {}),
                **({} if stateful is None else {"source": stateful.state()}),
            }
            if checkpoints.after_step(done, remembered, stop=progress.stop_requested):
                raise Stopped
    if first == steps and validate is not None:
        validation = _evaluate(model, validate, world)
    model.eval()
    seconds = time.monotonic() - started_s
    losses = log.losses() or losses
    tail = losses[-max(1, len(losses) // 10) :]
    return TrainingResult(
        steps=steps,
        resumed_from=first,
        loss=sum(tail) / len(tail) if tail else math.nan,
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / max(seconds, 1e-9),
        peak_memory_mb=peak_memory_mb(device),
        validation=validation,
        before=before,
        precision=concrete_precision(settings.precision, device),
        skipped_steps=recovery.skipped,
    )


def _fixed(settings: TrainingSettings) -> dict[str, Any]:
    """The settings that a continued run must share with the one that it continues."""
    return settings.model_dump(mode="json", exclude=MAY_CHANGE)


def _seed_all(seed: int) -> None:
    """Seeds every generator that a loss or a model may use; randomness is a function of seed, step and mesh position."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _evaluate(model: nn.Module, validate: Callable[[], dict[str, float]], world: World) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        numbers = world.evaluate(model, validate)
    model.train()
    return numbers


class MetricsLog:
    """metrics.jsonl with each step of a phase once, also if the run was killed and continued."""

    def __init__(self, path: Path | None, phase: str, first: int):
        """path: None writes nothing, for processes other than the first. first: step from which the run continues."""
        self.path, self.phase = path, phase
        if path is None:
            return
        lines = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # a line that was cut short when the run was killed
                    continue
                if record["phase"] != phase or record["step"] <= first:
                    lines.append(line)
        with renamed_when_complete(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines))

    def losses(self) -> list[float]:
        """The losses of all steps of the phase that were not skipped, including steps before the run was continued."""
        if self.path is None or not self.path.exists():
            return []
        records = (json.loads(line) for line in self.path.read_text().splitlines())
        return [
            record["loss"]
            for record in records
            if record["phase"] == self.phase and "skipped" not in record and record.get("loss") is not None
        ]

    def write(self, record: dict[str, float | str]) -> None:
        """Appends a step's line. Numbers that are not finite become null, because JSON has none."""
        if self.path is None:
            return
        record = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
        }
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


@contextmanager
def deterministic_kernels(wanted: bool, device: torch.device) -> Iterator[None]:
    """Makes torch use deterministic kernels inside the block, on CUDA. Raises ModelError with the operation's name if one has
    no deterministic kernel. cuBLAS also needs CUBLAS_WORKSPACE_CONFIG, which model_ops.machine.process sets."""
    if not wanted or device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0] if str(error) else ""
        if "deterministic" not in said:
            raise
        raise ModelError(
            f"this model needs an operation without a deterministic kernel ({said}); set deterministic: false"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
