"""The training loop. It knows no algorithm: a plan gives the batches of a step, a loss says what to minimise.

    result = train(model, plan, loss, settings, work=output / ".work", progress=progress, phase="sft")

- A plan is a pure function of the step's index, so a run that was killed needs only that index to continue, and ends
  with the same weights, bit for bit, as one that was not.
- A loss returns a sum and the count it is to be divided by. Sums and counts are added over all micro-batches of a step
  before the division, so the gradient does not depend on how a step is cut into micro-batches.
- Master weights, gradients and the optimizer are float32; products run in `settings.precision`.
- metrics.jsonl (beside the work folder) gets one line a step; checkpoints lie under `work`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.errors import ModelError
from model_ops.progress import Progress, Stopped
from model_ops.specs import TrainingSettings
from model_ops.training.checkpoint import load_checkpoint, save_checkpoint

IGNORED = -100
"""A label that asks for no prediction."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: documents laid end to end, as aligned streams of one value per token.

    labels[t] is the token to predict AT position t (already shifted), IGNORED where there is none; the last token of a
    document never has one. Documents do not see each other: `document_lengths` says where each begins.
    """

    input_ids: Int[Tensor, " tokens"]
    position_ids: Int[Tensor, " tokens"]
    labels: Int[Tensor, " tokens"]
    weights: Float[Tensor, " tokens"]
    document_lengths: list[int]
    row_ids: list[str]
    extras: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.input_ids.numel()

    @property
    def model_inputs(self) -> dict[str, object]:
        """What a model loaded with attention="packed" is called with."""
        return {
            "input_ids": self.input_ids[None],
            "position_ids": self.position_ids[None],
            "use_cache": False,
            "document_lengths": self.document_lengths,
        }

    def to(self, device: torch.device) -> Batch:
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self)
                 if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **moved, extras={name: value.to(device) for name, value in self.extras.items()})


class BatchPlan(Protocol):
    """The batches of a run, by optimizer step."""

    def __len__(self) -> int:
        """How many optimizer steps there are."""

    def step(self, index: int) -> list[Batch]:
        """The micro-batches of step `index`: always the same ones for the same index."""


@dataclass(frozen=True)
class LossOutput:
    """A loss over one micro-batch: `sum` is what is differentiated, `count` what the step's total is divided by.

    metrics are sums as well, divided by the same count in the log.
    """

    sum: Float[Tensor, ""]
    count: Tensor | float
    metrics: dict[str, Tensor | float] = field(default_factory=dict)


Loss = Callable[[nn.Module, Batch], LossOutput]


@dataclass(frozen=True)
class TrainingResult:
    """What a finished run was. `loss` is the mean over the last tenth of the steps that this process ran."""

    steps: int
    resumed_from: int
    loss: float
    tokens: int
    seconds: float
    tokens_per_second: float
    peak_memory_mb: float
    validation: dict[str, float]


def train(
    model: nn.Module,
    batches: BatchPlan,
    loss: Loss,
    settings: TrainingSettings,
    work: Path,
    progress: Progress,
    phase: str,
    validate: Callable[[], dict[str, float]] | None = None,
    validate_every: int | None = None,
) -> TrainingResult:
    """Trains `model` in place through every step of `batches`, continuing from the newest checkpoint under `work`.

    `settings` are resolved (nothing open). `validate` runs every `validate_every` steps (open: four times in all) and
    after the last step; its numbers are logged and the last ones returned.
    Raises Stopped after saving when a stop was asked for, ModelError when the loss is not a finite number.
    """
    steps = len(batches)
    if steps == 0:
        raise ModelError(f"{phase}: there is nothing to train on; no row holds a token to predict")
    device = next(model.parameters()).device
    optimizer = build_optimizer(model, settings)
    run = {"phase": phase, "settings": settings.model_dump(mode="json"), "steps": steps}
    first = load_checkpoint(work, model, optimizer, run)
    log = _MetricsLog(work.parent / "metrics.jsonl", phase, first)
    validate_every = validate_every or max(1, math.ceil(steps / 4))
    validation: dict[str, float] = {}
    losses, tokens, started_s = [], 0, time.monotonic()
    model.train()
    for index in range(first, steps):
        step_started_s = time.monotonic()
        torch.manual_seed(settings.seed * 1_000_003 + index)
        micro_batches = [batch.to(device) for batch in batches.step(index)]
        learning_rate = learning_rate_at(index, steps, settings)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        numbers = optimizer_step(model, micro_batches, loss, optimizer, settings, name=f"{phase} step {index}")
        step_tokens = sum(batch.tokens for batch in micro_batches)
        tokens += step_tokens
        losses.append(numbers["loss"])
        done = index + 1
        if validate is not None and (done % validate_every == 0 or done == steps):
            validation = _evaluate(model, validate)
            numbers.update(validation)
        rate = step_tokens / (time.monotonic() - step_started_s)
        log.write({"phase": phase, "step": done, **numbers, "learning_rate": learning_rate, "tokens": step_tokens,
                   "tokens_per_second": round(rate), "peak_memory_mb": round(peak_memory_mb(device))})
        progress.report(phase, done, steps, "steps", loss=numbers["loss"], tokens_per_second=round(rate))
        if progress.stop_requested and done < steps:
            save_checkpoint(work, done, model, optimizer, run)
            raise Stopped
        if done % settings.checkpoint_every == 0:
            save_checkpoint(work, done, model, optimizer, run)
    if first == steps and validate is not None:
        validation = _evaluate(model, validate)
    model.eval()
    seconds = time.monotonic() - started_s
    tail = losses[-max(1, len(losses) // 10):]
    return TrainingResult(
        steps=steps, resumed_from=first, loss=sum(tail) / len(tail) if tail else math.nan, tokens=tokens,
        seconds=seconds, tokens_per_second=tokens / max(seconds, 1e-9), peak_memory_mb=peak_memory_mb(device),
        validation=validation,
    )


def optimizer_step(model: nn.Module, micro_batches: list[Batch], loss: Loss, optimizer: torch.optim.Optimizer,
                   settings: TrainingSettings, name: str) -> dict[str, float]:
    """One update from all micro-batches; returns the step's loss, grad_norm and metrics.

    The gradient is that of (sum of all losses) / (sum of all counts), clipped to `settings.gradient_clip`.
    Raises ModelError naming `name` and the rows, before any weight changes, when the loss is not finite.
    """
    device = micro_batches[0].input_ids.device
    optimizer.zero_grad(set_to_none=True)
    sums, count, metrics = [], 0.0, {}
    for batch in micro_batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            output = loss(model, batch)
        output.sum.backward()
        sums.append(output.sum.detach())
        count = count + output.count
        for key, value in output.metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            metrics[key] = metrics.get(key, 0.0) + value
    count = float(count)
    totals = torch.stack(sums).double()
    if not torch.isfinite(totals).all():
        broken = micro_batches[int((~torch.isfinite(totals)).nonzero()[0])]
        raise ModelError(f"{name}: the loss is not a finite number on rows {_some(broken.row_ids)}; "
                         "lower learning_rate or look at these rows")
    if count <= 0:
        raise ModelError(f"{name}: rows {_some(micro_batches[0].row_ids)} hold no token to predict")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) / count
    if not math.isfinite(norm):
        raise ModelError(f"{name}: the gradient is not a finite number on rows {_some(micro_batches[0].row_ids)}; "
                         "lower learning_rate or look at these rows")
    torch._foreach_mul_(gradients, min(1.0, settings.gradient_clip / (norm + 1e-6)) / count)
    optimizer.step()
    return {"loss": float(totals.sum()) / count, "grad_norm": norm,
            **{key: float(value) / count for key, value in metrics.items()}}


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained; no decay on embeddings, norms and biases."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [p for p in trained if p.ndim >= 2 and id(p) not in embeddings]
    undecayed = [p for p in trained if p.ndim < 2 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay},
              {"params": undecayed, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate,
                             betas=(0.9, 0.95), eps=1e-8, fused=True)


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """Linear warm-up, then a cosine down to `final_learning_rate_share` of the peak at the last step."""
    warmup = round(settings.warmup_share * steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - 1 - warmup)
    floor = settings.final_learning_rate_share
    return settings.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share)))


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory in MiB: of the accelerator where there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):
        return memory.peak_wset / 2**20
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _evaluate(model: nn.Module, validate: Callable[[], dict[str, float]]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        numbers = validate()
    model.train()
    return numbers


def _some(row_ids: list[str]) -> str:
    shown = ", ".join(row_ids[:5])
    return shown if len(row_ids) <= 5 else f"{shown} and {len(row_ids) - 5} more"


class _MetricsLog:
    """metrics.jsonl: each step of a phase once, however often the run was killed."""

    def __init__(self, path: Path, phase: str, first: int):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # the line a kill cut short
                    continue
                if record["phase"] != phase or record["step"] <= first:
                    kept.append(line)
        beside = path.with_name(f".{path.name}")
        beside.write_text("".join(f"{line}\n" for line in kept))
        beside.replace(path)
        self.path = path

    def write(self, record: dict[str, float | str]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
