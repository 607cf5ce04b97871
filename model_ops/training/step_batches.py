"""A run's batches on their device, one step after another, and how long the step had to wait for them.

    steps = StepBatches(plan, world, first=0)
    data = steps.take(index)        # data.batches, data.tokens, data.waited_s

On an accelerator the next step's batches are made by a thread while this step computes: of a source without state a step is a
function of its index alone, so that changes nothing but the time. On a CPU the same cores would do both, and one more step's
batches would be held; there they are made when they are asked for. So are those of a source with state everywhere, since they
may depend on the weights that this step updates.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from model_ops.batch import IGNORED, Batch, BatchSource, StatefulSource
from model_ops.parallel.world import World


@dataclass(frozen=True)
class StepData:
    """This rank's micro-batches of one step, what they hold, and the seconds the step waited for them."""

    batches: list[Batch]
    tokens: int
    target_tokens: int
    document_lengths: list[int]
    waited_s: float


class StepBatches:
    """Takes steps in order; `ahead` (open: on accelerators) makes one step more than was asked for."""

    def __init__(self, plan: BatchSource, world: World, first: int, ahead: bool | None = None):
        self._plan, self._world = plan, world
        self._ahead = (world.device.type != "cpu" if ahead is None else ahead) and not isinstance(plan, StatefulSource)
        self._next: tuple[int, Future[list[Batch]]] | None = None
        if self._ahead and first < len(plan):
            self._begin(first)

    def take(self, index: int) -> StepData:
        """Step `index`. Raises whatever the plan raised when it made it."""
        began_s = time.perf_counter()
        if not self._ahead:
            made = self._make(index)
        else:
            if self._next is None or self._next[0] != index:
                self._begin(index)
            made = self._next[1].result()
            if index + 1 < len(self._plan):
                self._begin(index + 1)
        batches = [batch.to(self._world.device) for batch in made]
        said = [batch for batch in made if batch.row_ids]  # silent ones only keep ranks in step
        return StepData(
            batches, tokens=sum(batch.tokens for batch in said),
            target_tokens=sum(int((batch.labels != IGNORED).sum()) for batch in said),
            document_lengths=list(itertools.chain.from_iterable(batch.document_lengths for batch in said)),
            waited_s=time.perf_counter() - began_s,
        )

    def _begin(self, index: int) -> None:
        made: Future[list[Batch]] = Future()

        def make() -> None:
            try:
                made.set_result(self._make(index))
            except BaseException as error:
                made.set_exception(error)  # raised again by the step that takes it

        self._next = (index, made)
        threading.Thread(target=make, name=f"batches of step {index}", daemon=True).start()

    def _make(self, index: int) -> list[Batch]:
        return self._plan.step(index, self._world.data_rank, self._world.data_ranks)
