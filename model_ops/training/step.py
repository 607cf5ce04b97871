"""One optimizer step: all its micro-batches forward and backward, one division by the global count, one update."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model_ops.errors import ModelError
from model_ops.parallel.world import World, local_part
from model_ops.specs import TrainingSettings
from model_ops.training.batch import Batch, Loss


def optimizer_step(model: nn.Module, micro_batches: list[Batch], loss: Loss, optimizer: torch.optim.Optimizer,
                   settings: TrainingSettings, world: World, name: str) -> dict[str, float]:
    """One update from all micro-batches; returns the step's loss, grad_norm and metrics.

    The gradient is that of (sum of all losses) / (sum of all counts), clipped to `settings.gradient_clip`.
    Raises ModelError naming `name` and the rows, before any weight changes, when the loss is not finite.
    """
    device = micro_batches[0].input_ids.device
    optimizer.zero_grad(set_to_none=True)
    sums, count, metrics = [], 0.0, {}
    for batch in micro_batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            output = world.run(loss, model, batch)
        output.sum.backward()
        sums.append(output.sum.detach())
        count = count + output.count
        for key, value in output.metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            metrics[key] = metrics.get(key, 0.0) + value
    totals = torch.stack(sums).double()
    loss_sum, count, *values = world.totals([float(totals.sum()), float(count), *map(float, metrics.values())])
    if not math.isfinite(loss_sum):  # the same sum, and so the same decision, on every process
        broken = [micro_batches[int(place)].row_ids for place in (~torch.isfinite(totals)).nonzero()[:1]]
        raise ModelError(f"{name}: the loss is not a finite number on rows {_some(_all(world, broken))}; "
                         "lower learning_rate or look at these rows")
    if count <= 0:
        raise ModelError(f"{name}: rows {_some(_all(world, [micro_batches[0].row_ids]))} hold no token to predict")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = world.norm(gradients) / count
    if not math.isfinite(norm):
        rows = _all(world, [micro_batches[0].row_ids])
        raise ModelError(f"{name}: the gradient is not a finite number on rows {_some(rows)}; "
                         "lower learning_rate or look at these rows")
    torch._foreach_mul_([local_part(gradient) for gradient in gradients],
                        min(1.0, settings.gradient_clip / (norm + 1e-6)) / count)
    optimizer.step()
    return {"loss": loss_sum / count, "grad_norm": norm,
            **{key: value / count for key, value in zip(metrics, values, strict=True)}}


def _all(world: World, row_ids: list[list[str]]) -> list[str]:
    """The rows of every process, each once."""
    return list(dict.fromkeys(row for process in world.gather(row_ids) for rows in process for row in rows))


def _some(row_ids: list[str]) -> str:
    shown = ", ".join(row_ids[:5])
    return shown if len(row_ids) <= 5 else f"{shown} and {len(row_ids) - 5} more"
