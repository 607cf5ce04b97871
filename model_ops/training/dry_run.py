"""Runs the heaviest micro-batch before the first step, so that a lack of memory shows at once. Buffers and generators are
restored, so losses are bit-identical with and without it. On an accelerator, memory of the future optimizer state stays
reserved."""

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from model_ops.jobs import ModelError
from model_ops.machine import products_in
from model_ops.parallel import World
from model_ops.tensors import IGNORED, AnyBatch, Batch, BatchSource, KindOfBatch, Loss
from model_ops.training.optimizers import state_bytes
from model_ops.training.settings import TrainingSettings


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
