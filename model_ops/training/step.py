"""One optimizer step: all its micro-batches forward and backward, one division by the global count, one update."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from model_ops.batch import Batch, Loss
from model_ops.errors import ModelError
from model_ops.parallel.world import World, local_part
from model_ops.progress import Progress
from model_ops.training.recovery import Recovery, some
from model_ops.training.settings import TrainingSettings


def optimizer_step(model: nn.Module, micro_batches: list[Batch], loss: Loss, optimizer: torch.optim.Optimizer,
                   settings: TrainingSettings, world: World, name: str,
                   recovery: Recovery | None = None) -> dict[str, float]:
    """One update from all micro-batches; returns the step's loss, grad_norm and metrics.

    The gradient is that of (sum of all losses) / (sum of all counts), clipped to `settings.gradient_clip`.
    Where loss or gradient are not finite, or a spike, `recovery` decides before any weight changes: a skipped step has
    "skipped" among its numbers, else it raises ModelError naming `name` and the rows (what no `recovery` does as well).
    """
    device = micro_batches[0].input_ids.device
    optimizer.zero_grad(set_to_none=True)
    sums, count, metrics, own_counts = [], 0.0, {}, {}
    for place, batch in enumerate(micro_batches, 1):
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            output = world.run(loss, model, batch, last=place == len(micro_batches))
        output.sum.backward()
        sums.append(output.sum.detach())
        count = count + output.count
        for key, value in output.metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            metrics[key] = metrics.get(key, 0.0) + value
        for key, value in output.metric_counts.items():
            own_counts[key] = own_counts.get(key, 0.0) + value
    totals = torch.stack(sums).double()
    loss_sum, count, *values = world.totals([float(totals.sum()), float(count), *map(float, metrics.values()),
                                             *own_counts.values()])
    if count <= 0:
        mine = [row for batch in micro_batches for row in batch.row_ids]
        rows = dict.fromkeys(row for rows in world.gather(mine) for row in rows)
        raise ModelError(f"{name}: rows {some(list(rows))} hold no token to predict")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = world.norm(gradients) / count
    divisors = dict(zip(own_counts, values[len(metrics):], strict=True))
    numbers = {"loss": loss_sum / count, "grad_norm": norm,
               **{key: _mean(value, divisors.get(key, count)) for key, value in zip(metrics, values, strict=False)}}
    if not (math.isfinite(numbers["loss"]) and math.isfinite(norm)):
        _refuse_broken_weights(model, world, name)
    recovery = recovery or Recovery(settings, world, Progress())
    if not recovery.takes(name, numbers["loss"], norm, lambda: _suspicious(micro_batches, totals, loss_sum)):
        optimizer.zero_grad(set_to_none=True)
        return {**numbers, "skipped": 1}
    torch._foreach_mul_([local_part(gradient) for gradient in gradients],
                        min(1.0, settings.gradient_clip / (norm + 1e-6)) / count)
    optimizer.step()
    return numbers


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def _refuse_broken_weights(model: nn.Module, world: World, name: str) -> None:
    """Raises ModelError naming the first weight that is no finite number: no row is to blame then, and none can be skipped."""
    mine = next((of for of, weight in model.named_parameters()
                 if weight.is_floating_point() and not torch.isfinite(local_part(weight)).all()), None)
    broken = next((of for of in world.gather(mine) if of is not None), None)
    if broken is not None:
        raise ModelError(f"{name}: weight {broken} of the model holds values that are no finite numbers, so every row's loss "
                         "is none either; get the model again")


def _suspicious(micro_batches: list[Batch], totals: Float64[Tensor, " micro_batches"], loss_sum: float) -> list[str]:
    """Ids of this process's rows whose loss is not finite; of all its rows where the loss of the whole step is."""
    wanted = torch.ones_like(totals) if math.isfinite(loss_sum) else ~torch.isfinite(totals)
    return [row for batch, so in zip(micro_batches, wanted.tolist(), strict=True) if so for row in batch.row_ids]
