"""Loads the batches of each step onto the device, and measures the waiting time.

On an accelerator a thread makes the next step's batches while this step computes, which changes only the time: a step of a
source without state is a function of its index. A source with state is never asked ahead, since its batches may depend on the
weights that this step updates.
"""

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic

from model_ops.parallel import World
from model_ops.tensors import IGNORED, AnyBatch, BatchSource, StatefulSource


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
