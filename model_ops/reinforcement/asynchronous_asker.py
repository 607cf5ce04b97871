"""Asks rounds ahead of the training, from engines in other processes that sample meanwhile.

    trainer (main thread)                                      rollout workers (LANES threads), engines (processes)
    answered(n): publishes the weights of version n  ------->  engines take them between two tokens
                 waits for round n             <---+           _admitted: waits until a round may be asked
    step n learns it                               |           maker: engines sample, then a grader grades
    answered(n + 1) ...                            +-- log <-- _keep: adds the chunk, wakes the trainer

The queue is the log. The trainer blocks on round n; a worker blocks while every round up to version + max_staleness is complete
or running. So no token is older than max_staleness steps when it is learnt, and nothing that was sampled is thrown away: a
prompt is asked only when that is certain. It is the rule of AReaL's staleness manager (arXiv 2505.24298), capacity =
(max_staleness + version + 1) * prompts_per_step - accepted - running, for prompts that are learnt in the order of their rounds.
With two workers the engines answer one chunk while the other waits for its grader.

What a step learns follows from the log alone: a training that is killed learns the same rollouts again from its checkpoint on.
"""

import itertools
import threading
from collections import Counter, defaultdict
from typing import Any

from model_ops.answers import EngineProcesses, Rollout, RolloutMaker
from model_ops.reinforcement.canary import canary_rollouts
from model_ops.reinforcement.rollout_groups import Group
from model_ops.reinforcement.round_asker import RoundAsker, chunk_names

LANES = 2
"""Threads that ask for single answers: one has its answers graded while the engines answer the other."""
WAIT_S = 0.5


class AsynchronousAsker(RoundAsker):
    """engine: opened EngineProcesses; closed by `close`."""

    engine: EngineProcesses

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._news = threading.Condition()
        """Guards every attribute below."""
        self._ready: defaultdict[int, list[Group]] = defaultdict(list)
        """Groups in the log, by round, from the present round on."""
        self._running, self._places = Counter[int](), itertools.count()
        """Prompts that are being answered, by round; numbers of chunks."""
        self._version = self._open = -1
        """Optimizer steps so far; the first round that is not learnt yet."""
        self._lanes: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._closed = False

    def close(self) -> None:
        """Ends the threads and the engines; answers that are not in the log yet are lost. May be called twice."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        self.engine.close()
        for lane in self._lanes:
            lane.join()

    def answered(self, number: int) -> tuple[list[Group], float | None]:
        """Publishes the weights, and waits for the round. Raises what ended a thread."""
        self.engine.sync(number)
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
            return self._ready.pop(number), self.engine.gap

    def _begin(self, number: int) -> None:
        """Starts the threads; the log has what was made for this round and later ones."""
        for chunk in self.log.chunks:
            if chunk.round >= number:
                self._ready[chunk.round] += self._groups(chunk)
        places = [int(name.partition(":")[0]) for chunk in self.log.chunks for name in chunk.names]
        self._places = itertools.count(max(places, default=-1) + 1)  # chunks may end in another order than they began
        for maker in self.makers:
            self._lanes.append(threading.Thread(target=self._lane, args=(maker,), name="rollouts", daemon=True))
            self._lanes[-1].start()

    def _lane(self, maker: RolloutMaker) -> None:
        try:
            while (asked := self._admitted()) is not None:
                number, place, chosen = asked
                self._keep(number, place, chosen, self._rollouts(maker, place, chosen))
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
                            self.pool.see(prompt, [])  # it is asked: other chunks take others
                        self._running[number] += len(chosen)
                        return number, place, chosen
                self._news.wait()
        return None

    def _keep(self, number: int, place: int, chosen: list[int], groups: list[list[Rollout]]) -> None:
        """Adds a chunk to the log. Where all of it has the present weights the canary reads it first; the training waits for it
        then."""
        with self._news:
            first = canary_rollouts(groups)
            if number == self._version and all((rollout.versions[rollout.sampled] == number).all() for rollout in first):
                self.canary(first, number)
            self.log.add_chunk(number, chosen, chunk_names(place, chosen), groups)
            self._ready[number] += self._groups(self.log.chunks[-1])
            self._running[number] -= len(chosen)
            self._news.notify_all()
