"""Steps that learn from rollouts which engines in other processes make meanwhile: a RolloutPlan that waits for nobody.

    plan = AsynchronousPlan(prompts, makers, engines, log=log, model=model, ...)      # the rest as RolloutPlan
    train(model, plan, loss, ...)
    plan.close()

Step i learns from round i, as with one process, but a round is asked for as soon as step round - max_staleness has begun. So
nothing that was sampled is ever too old, and nothing is thrown away: the oldest token of a rollout has weights of at most
max_staleness steps before those that learn it, because a prompt is asked only when that is certain. It is the rule of
AReaL's staleness manager (arXiv 2505.24298), capacity = (max_staleness + version + 1) * prompts_per_step - accepted - running,
for prompts that are learnt in the order of their rounds. A run that continues has accepted version * prompts_per_step.

The queue is the log. Each maker has a thread that asks for a chunk, waits for its answers and their grades, and adds them to
the log; while one waits for a grader, the engines answer the other. What a step learns follows from the log alone: a training
that is killed learns the same rollouts again from its checkpoint on, and each is learnt once on the way to the weights.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from model_ops.answers import EngineProcesses, Rollout, RolloutMaker, SampledPrompt
from model_ops.reinforcement.canary import canary_rollouts
from model_ops.reinforcement.rollout_batches import Numbers
from model_ops.reinforcement.rollout_plan import Group, LearntGroup, RolloutPlan, chunk_names

LANES = 2
"""Threads that ask for single answers: one has its answers graded while the engines answer the other."""
WAIT_S = 0.5


class AsynchronousPlan(RolloutPlan):
    """makers: one for each thread that asks. engines: opened; closed by `close`."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        makers: Sequence[RolloutMaker],
        engines: EngineProcesses,
        *rest: Any,
        **named: Any,
    ):
        super().__init__(prompts, makers[0], engines, *rest, **named)
        self._makers, self._engines, self._lanes_at_once = makers, engines, len(makers)
        self._news = threading.Condition()
        """Of all that follows."""
        self._ready: defaultdict[int, list[Group]] = defaultdict(list)
        """Groups in the log, by round, from the present round on."""
        self._running, self._places = Counter[int](), itertools.count()
        """Prompts that are being answered, by round; numbers of chunks."""
        self._version = self._open = -1
        """Optimizer steps so far; the first round that is not learnt yet."""
        self._lanes: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._closed = False

    def counts(self) -> dict[str, float]:
        """As RolloutPlan.counts, and how old the weights were that sampled what was learnt: of first tokens, in steps."""
        rows = [row for chunk in self.log.chunks for row in self.log.rows(chunk, self.prompts, 1) if row["learnt"]]
        ages = [row["step"] - row["version"] for row in rows] or [0]
        return {**super().counts(), "staleness": float(np.mean(ages)), "largest_staleness": max(ages)}

    def close(self) -> None:
        """Ends the threads and the engines; answers that are not in the log yet are lost. May be called twice."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._engines.close()
        for lane in self._lanes:
            lane.join()

    def _round(self, number: int) -> tuple[list[LearntGroup], Numbers]:
        groups, numbers = super()._round(number)
        learnt = [each.rollout for _, group in groups for each in group]
        ages = np.concatenate([[0] * (not learnt), *(number - each.versions[each.sampled] for each in learnt)])
        oldest = (float(ages.max()), 1.0)
        return groups, {**numbers, "staleness": (float(ages.sum()), float(len(ages))), "largest_staleness": oldest}

    def _answered(self, number: int) -> tuple[list[Group], float | None]:
        """Publishes the weights, and waits for the round. Raises what ended a thread."""
        self._engines.sync(number)
        with self._news:
            self._version = self._open = number
            if not self._lanes:
                self._begin(number)
            self._news.notify_all()
            reported = -1  # groups
            while self._running[number] or self._missing(number, self._ready[number]):
                if self._failure is not None:
                    raise self._failure
                self._progress.stop_if_requested()
                done, running = len(self._ready[number]), self._running[number]
                if done > reported:
                    left = running + self._missing(number, self._ready[number], running)
                    self._report(number, self._ready[number], left)
                    reported = done
                self._news.wait(WAIT_S)
            self._open += 1
            return self._ready.pop(number), self._engines.gap

    def _begin(self, number: int) -> None:
        """Starts the threads; the log has what was made for this round and later ones."""
        for chunk in self.log.chunks:
            if chunk.round >= number:
                self._ready[chunk.round] += self._groups(chunk)
        places = [int(name.partition(":")[0]) for chunk in self.log.chunks for name in chunk.names]
        self._places = itertools.count(max(places, default=-1) + 1)  # chunks may end in another order than they began
        for maker in self._makers:
            self._lanes.append(threading.Thread(target=self._lane, args=(maker,), name="rollouts", daemon=True))
            self._lanes[-1].start()

    def _lane(self, maker: RolloutMaker) -> None:
        try:
            while (asked := self._admitted()) is not None:
                number, place, chosen = asked
                self._keep(number, place, chosen, self._made(maker, place, chosen))
        except BaseException as error:
            with self._news:
                self._failure = self._failure or error
                self._news.notify_all()

    def _admitted(self) -> tuple[int, int, list[int]] | None:
        """(round, number of the chunk, its prompts), once something may be asked; None when nothing will be any more."""
        with self._news:
            while not self._closed and self._failure is None:
                newest = min(self._version + self.settings.max_staleness, self._steps - 1)
                for number in range(self._open, newest + 1):
                    if count := self._missing(number, self._ready[number], self._running[number]):
                        place = next(self._places)
                        chosen = self._drawn(place, min(count, self._at_once))
                        for prompt in chosen:
                            self._pool.see(prompt, [])  # it is asked: other chunks take others
                        self._running[number] += len(chosen)
                        return number, place, chosen
                self._news.wait()
        return None

    def _keep(self, number: int, place: int, chosen: list[int], made: list[list[Rollout]]) -> None:
        """Adds a chunk to the log. Where all of it has the present weights the canary reads it first; the training waits for it
        then."""
        with self._news:
            each = canary_rollouts(made)
            if number == self._version and all((rollout.versions[rollout.sampled] == number).all() for rollout in each):
                self._canary(each, number)
            self.log.add_chunk(number, chosen, chunk_names(place, chosen), made)
            self._ready[number] += self._groups(self.log.chunks[-1])
            self._running[number] -= len(chosen)
            self._news.notify_all()
