"""One optimizer step: forward and backward of all micro-batches, division by the global count, one update."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from model_ops.jobs import ModelError, Progress, filled
from model_ops.machine import products_in
from model_ops.parallel import World, local_part
from model_ops.tensors import (
    IGNORED,
    AnyBatch,
    Batch,
    BatchSource,
    Loss,
    LossOfTerms,
    LossOutput,
    Mean,
    StatefulSource,
    torch_internals,
)
from model_ops.training.recovery import Recovery, some
from model_ops.training.settings import TrainingSettings


@dataclass(frozen=True)
class StepData(Generic[AnyBatch]):
    """This rank's micro-batches of one step, their token counts, and the seconds that the step waited for them."""

    batches: list[AnyBatch]
    tokens: int
    target_tokens: int
    document_lengths: list[int]
    prefix_lengths: list[int]
    waited_s: float


class StepBatches(Generic[AnyBatch]):
    """Batches of the steps in order. ahead: make the next step's batches in advance; None: only on accelerators."""

    def __init__(self, plan: BatchSource[AnyBatch], world: World, first: int, ahead: bool | None = None):
        self._plan, self._world = plan, world
        self._ahead = (world.device.type != "cpu" if ahead is None else ahead) and not isinstance(plan, StatefulSource)
        self._next: tuple[int, Future[Sequence[AnyBatch]]] | None = None
        if self._ahead and first < len(plan):
            self._next = self._begin(first)

    def take(self, index: int) -> StepData[AnyBatch]:
        """The batches of step `index`. Raises any error of the source."""
        began_s = time.perf_counter()
        if not self._ahead:
            on_host = self._make(index)
        else:
            if self._next is None or self._next[0] != index:
                self._next = self._begin(index)
            on_host = self._next[1].result()
            if index + 1 < len(self._plan):
                self._next = self._begin(index + 1)
        batches = [batch.to(self._world.device) for batch in on_host]
        said = [batch for batch in on_host if batch.row_ids]  # others have no labels and only keep ranks in step
        return StepData(
            batches,
            tokens=sum(batch.tokens for batch in said),
            target_tokens=sum(int((batch.labels != IGNORED).sum()) for batch in said),
            document_lengths=list(itertools.chain.from_iterable(batch.document_lengths for batch in said)),
            prefix_lengths=[
                length for batch in said for _, length in batch.document_prefixes or [(0, 0)] * len(batch.document_lengths)
            ],
            waited_s=time.perf_counter() - began_s,
        )

    def _begin(self, index: int) -> tuple[int, Future[Sequence[AnyBatch]]]:
        future: Future[Sequence[AnyBatch]] = Future()

        def make() -> None:
            try:
                future.set_result(self._make(index))
            except BaseException as error:
                future.set_exception(error)  # `take` raises it again

        threading.Thread(target=make, name=f"batches of step {index}", daemon=True).start()
        return index, future

    def _make(self, index: int) -> Sequence[AnyBatch]:
        return self._plan.step(index, self._world.data_rank, self._world.data_ranks)


def optimizer_step(
    model: nn.Module,
    micro_batches: list[AnyBatch],
    loss: Loss[AnyBatch],
    optimizer: torch.optim.Optimizer,
    settings: TrainingSettings,
    world: World,
    name: str,
    recovery: Recovery | None = None,
    watch: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, float]:
    """One update from all micro-batches; returns the step's loss, grad_norm and metrics, and loss_<term> if there are several.

    The objective is the sum over terms of (sum of all sums) / (sum of all counts); its gradient is clipped to
    `settings.gradient_clip`. If loss or gradient are not finite, or a spike, `recovery` decides before any weight changes: it
    skips the step, whose numbers then have "skipped", or raises ModelError with `name` and the rows. Without `recovery`, a loss
    or gradient that is not finite raises ModelError. Each forward pass runs inside `watch()`."""
    device = micro_batches[0].input_ids.device
    optimizer.zero_grad(set_to_none=True)
    known = _counts_of_terms(loss, micro_batches, world)
    minimised, terms, metrics = [], Totals(), Totals()
    for place, batch in enumerate(micro_batches, 1):
        with products_in(settings.precision, device), watch():
            output = world.run(loss, model, batch, last=place == len(micro_batches))
        objective = _objective(output, known)
        objective.backward()
        minimised.append(objective.detach())
        terms.add(output.terms, double=True)
        metrics.add(output.metrics)
    minimised = torch.stack(minimised).double()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    means, norm = _over_all_processes([terms, metrics], world, world.norm(gradients))
    counts = {name: count for name, (_, count) in means[0].items()}
    if max(counts.values()) <= 0:
        mine = [row for batch in micro_batches for row in batch.row_ids]
        rows = dict.fromkeys(row for rows in world.gather(mine) for row in rows)
        raise ModelError(f"{name}: rows {some(list(rows))} hold no token to predict; remove them from the dataset")
    if known is not None and any(not math.isclose(counts[term], known[term], rel_tol=1e-5) for term in known):
        raise ModelError(f"{name}: counts() of the loss returned {known}, but its terms counted {counts}; make both agree")
    divisor = 1.0 if known is not None else next(iter(counts.values()))  # several terms were divided before the backward pass
    norm /= divisor
    of_terms = {term: _mean(*mean) for term, mean in means[0].items()}
    numbers = {
        "loss": sum(value for term, value in of_terms.items() if counts[term]),
        "grad_norm": norm,
        **({f"loss_{term}": value for term, value in of_terms.items()} if known is not None else {}),
        **{key: _mean(*mean) for key, mean in means[1].items()},
    }
    if not (math.isfinite(numbers["loss"]) and math.isfinite(norm)):
        _refuse_broken_weights(model, world, name)
    recovery = recovery or Recovery(settings, world, Progress())
    if not recovery.takes(name, numbers["loss"], norm, lambda: _suspicious(micro_batches, minimised, numbers["loss"])):
        optimizer.zero_grad(set_to_none=True)
        return {**numbers, "skipped": 1}
    torch_internals.foreach_multiply(
        [local_part(gradient) for gradient in gradients], min(1.0, filled(settings.gradient_clip) / (norm + 1e-6)) / divisor
    )
    optimizer.step()
    return numbers


class Totals:
    """Sums and counts of named means over micro-batches, added in the precision of the inputs."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, Tensor | float] = {}

    def add(self, means: Mapping[str, Mean], double: bool = False) -> None:
        """Adds a micro-batch. double: add sums in double precision."""
        for name, mean in means.items():
            value = mean.sum.detach() if isinstance(mean.sum, Tensor) else mean.sum
            value = value.double() if double and isinstance(value, Tensor) else value
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0.0) + mean.count


def _counts_of_terms(loss: Loss[AnyBatch], micro_batches: list[AnyBatch], world: World) -> dict[str, float] | None:
    """The step's count of each term of a loss with several terms, before the forward pass; None for a loss with one term."""
    if not isinstance(loss, LossOfTerms):
        return None
    counts: dict[str, float] = {}
    for batch in micro_batches:
        for term, count in loss.counts(world.part_of(batch)).items():
            counts[term] = counts.get(term, 0.0) + float(count)
    return dict(zip(counts, world.totals(list(counts.values())), strict=True))


def _objective(output: LossOutput, known: Mapping[str, float] | None) -> Float[Tensor, ""]:
    """The tensor to differentiate: the sum of a single term, divided after the last backward pass; for several terms their sum,
    each divided by its step's count. Raises ModelError if the terms and their counts have different names."""
    if known is None:
        if len(output.terms) != 1:
            raise ModelError(
                f"the loss has the terms {', '.join(output.terms)} and no method counts(); add one "
                "(model_ops.tensors.batch.LossOfTerms)"
            )
        return next(iter(output.terms.values())).sum
    if output.terms.keys() != known.keys():
        raise ModelError(f"the loss has the terms {', '.join(output.terms)}, but its counts() has {', '.join(known)}")
    return sum(mean.sum / known[term] if known[term] else mean.sum * 0.0 for term, mean in output.terms.items())


def _over_all_processes(
    groups: list[Totals], world: World, norm: Float[Tensor, ""]
) -> tuple[list[dict[str, tuple[float, float]]], float]:
    """(sum, count) of every name, over all processes and micro-batches, and the norm: a step waits for its device here."""
    names = [(place, name) for place, group in enumerate(groups) for name in group.sums]
    mine = [number for place, name in names for number in (groups[place].sums[name], groups[place].counts[name])]
    *mine, of_gradients = _on_the_host([*mine, norm])
    totals = iter(world.totals(mine))
    means: list[dict[str, tuple[float, float]]] = [{} for _ in groups]
    for place, name in names:
        means[place][name] = (next(totals), next(totals))
    return means, of_gradients


def _on_the_host(numbers: list[Tensor | float]) -> list[float]:
    """The numbers as floats. Those of an accelerator arrive in one transfer, because each transfer waits for the device."""
    held = [number.detach().reshape(()).double() for number in numbers if isinstance(number, Tensor)]
    by_device = {
        device: iter(torch.stack([number for number in held if number.device == device]).tolist())
        for device in {number.device for number in held}
    }
    return [next(by_device[number.device]) if isinstance(number, Tensor) else float(number) for number in numbers]


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def _refuse_broken_weights(model: nn.Module, world: World, name: str) -> None:
    """Raises ModelError with the first weight that is not finite, because then skipping rows does not help."""
    mine = next(
        (
            of
            for of, weight in model.named_parameters()
            if weight.is_floating_point() and not torch.isfinite(local_part(weight)).all()
        ),
        None,
    )
    broken = next((of for of in world.gather(mine) if of is not None), None)
    if broken is not None:
        raise ModelError(
            f"{name}: weight {broken} of the model holds values that are not finite, so every loss is not finite; "
            "copy the model again"
        )


def _suspicious(micro_batches: Sequence[Batch], totals: Float64[Tensor, " micro_batches"], loss: float) -> list[str]:
    """Ids of this process's rows with a loss that is not finite; of all its rows if the step's loss is finite."""
    wanted = torch.ones_like(totals) if math.isfinite(loss) else ~torch.isfinite(totals)
    return [row for batch, so in zip(micro_batches, wanted.tolist(), strict=True) if so for row in batch.row_ids]
