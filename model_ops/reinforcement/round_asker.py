"""Asks the rounds of a training on rewards, in turn or ahead of it: draws prompts, has them answered, logs each."""

import itertools
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model_ops.answers import (
    Engine,
    EngineProcesses,
    Rollout,
    RolloutChunk,
    RolloutLog,
    RolloutMaker,
    SampledPrompt,
    last_of_attempts,
)
from model_ops.jobs import Progress
from model_ops.reinforcement.canary import canary_rollouts
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_groups import Group, chunk_groups, round_numbers

NEWEST_WEIGHT = 0.5
"""Of the newest group in a prompt's pass rate."""
SELDOM = 0.2
"""Weight of prompts that are always or never solved."""
ALWAYS, NEVER = 0.95, 0.05
"""Pass rates from which a prompt counts so."""


class PromptPool:
    """passing_grade: grade from which an answer counts as right."""

    def __init__(self, prompts: int, passing_grade: float, seed: int):
        self.passing_grade, self._seed = passing_grade, seed
        self.rates = np.full(prompts, np.nan)
        """Pass rate of each prompt; NaN for one that was not asked, or never graded."""
        self._asked = np.zeros(prompts, bool)

    def draw(self, chunk: int, count: int) -> list[int]:
        """Up to `count` different prompts: unseen ones in random order, then others in proportion to their weights
        (Efraimidis and Spirakis 2006: the greatest log(u) / weight)."""
        rates = np.nan_to_num(self.rates, nan=0.5)
        weights = np.where((rates >= ALWAYS) | (rates <= NEVER), SELDOM, 1.0)
        drawn = np.log(np.random.default_rng((self._seed, chunk, 5)).random(len(rates))) / weights
        order = np.lexsort((-drawn, self._asked))
        return order[:count].tolist()

    def see(self, prompt: int, grades: Sequence[float | None]) -> None:
        """Takes a group's grades into the prompt's pass rate."""
        self._asked[prompt] = True
        known = [grade >= self.passing_grade for grade in grades if grade is not None]
        if known:
            rate, before = sum(known) / len(known), self.rates[prompt]
            self.rates[prompt] = rate if np.isnan(before) else NEWEST_WEIGHT * rate + (1 - NEWEST_WEIGHT) * before


RoundCheck = Callable[[Sequence[Rollout], int], float]
"""(rollouts, round) -> the largest difference of log-probabilities of engine and model; raises ModelError for other weights."""


class RoundAsker:
    """makers: one for each thread that asks. steps: of the training. canary: reads the first answers after each sync."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        makers: Sequence[RolloutMaker],
        engine: Engine,
        log: RolloutLog,
        settings: RftSettings,
        canary: RoundCheck,
        progress: Progress,
        steps: int,
    ):
        self.prompts, self.makers, self.engine, self.log, self.settings = prompts, makers, engine, log, settings
        self.canary, self._progress, self._steps = canary, progress, steps
        self.pool = PromptPool(len(prompts), settings.passing_grade, settings.seed)
        self._seen = 0  # chunks whose grades the pool knows
        self._sampled_per_second = 0.0

    def close(self) -> None:
        """Nothing runs between two rounds."""

    def answered(self, number: int) -> tuple[list[Group], float | None]:
        """(the groups of a round, the canary's gap or None): from the log, else made now."""
        groups, gap = [group for chunk in self.log.of_round(number) for group in self._groups(chunk)], None
        while missing := self._missing(number, groups):
            self._progress.stop_if_requested()
            self._report(number, groups, missing)
            is_synced = gap is not None
            if not is_synced:
                self.engine.sync(number * self.settings.sync_steps)
            asked, chunk_gap = self.ask(number, min(missing, self._at_once), reads_canary=not is_synced)
            groups, gap = groups + asked, gap if is_synced else chunk_gap
        return groups, gap

    def ask(self, number: int, count: int, reads_canary: bool) -> tuple[list[Group], float]:
        """(the groups of the round's next chunk, the canary's gap or NaN). The draw knows the grades of all chunks before. The
        canary comes before the log, so that a continued run finds no rollouts there that it refused."""
        place = len(self.log.chunks)
        chosen = self._drawn(place, count)
        self.engine.settings = self.sampling(number)
        rollouts = self._rollouts(self.makers[0], place, chosen)
        self.engine.settings = self.settings  # held-out answers are sampled alike at any step
        gap = self.canary(canary_rollouts(rollouts), number) if reads_canary else math.nan
        self.log.add_chunk(number, chosen, chunk_names(place, chosen), rollouts)
        return self._groups(self.log.chunks[-1]), gap

    def sampling(self, round: int) -> RftSettings:
        """The settings with the temperature and the longest answer of a round."""
        return self.settings.at(round * self.settings.sync_steps / max(1, self._steps - 1))

    def steps_of(self, round: int) -> int:
        """Steps that learn from a round; the last one may have fewer."""
        return min(self.settings.sync_steps, self._steps - round * self.settings.sync_steps)

    @property
    def _at_once(self) -> int:
        """Prompts of a chunk."""
        return max(1, self.settings.batch_size // self.makers[0].answers)

    def _missing(self, number: int, groups: Sequence[Group], running: int = 0) -> int:
        """Prompts that are still to be asked for a round; more may follow. running: prompts that are being answered."""
        wanted = self.settings.prompts_per_step * self.steps_of(number)
        most, asked = wanted * (1 + self.settings.replacements), len(groups) + running
        useful = sum(group.teaches for group in groups) + running
        return max(0, wanted - asked if asked < wanted else min(wanted - useful, most - asked))

    def _drawn(self, place: int, count: int) -> list[int]:
        """The prompts of a chunk, by the grades so far."""
        for chunk in self.log.chunks[self._seen :]:
            for prompt, group in zip(chunk.prompts, chunk.numbers, strict=True):
                self.pool.see(prompt, [rollout.grade.value for rollout in last_of_attempts(group)])
        self._seen = len(self.log.chunks)
        return self.pool.draw(place, count)

    def _rollouts(self, maker: RolloutMaker, place: int, chosen: Sequence[int]) -> list[list[Rollout]]:
        asked, began_s = [self.prompts[prompt] for prompt in chosen], time.monotonic()
        groups = maker.rollouts(asked, chunk_names(place, chosen), self.engine, self.settings.seed)
        tokens = sum(int(rollout.sampled.sum()) for group in groups for rollout in group)
        self._sampled_per_second = len(self.makers) * tokens / max(time.monotonic() - began_s, 1e-9)
        return groups

    def _groups(self, chunk: RolloutChunk) -> list[Group]:
        return chunk_groups(chunk, self.settings, self.sampling(chunk.round).max_new_tokens)

    def _report(self, number: int, groups: Sequence[Group], missing: int) -> None:
        """Reports a step that waits for its round, with the grades of the round so far and the speed of the last chunk."""
        self._progress.report("rft", number * self.settings.sync_steps, self._steps, "steps")
        numbers = round_numbers(groups, self.settings.passing_grade, None)
        shown = {name: numbers[name][0] / numbers[name][1] for name in ("pass_rate", "reward") if numbers[name][1]}
        if self._sampled_per_second:
            shown["sampled_per_second"] = self._sampled_per_second
        self._progress.part("rollouts", len(groups), len(groups) + missing, "prompts", **shown)


def chunk_names(place: int, prompts: Sequence[int]) -> list[str]:
    """Names of the prompts of a chunk, which decide random numbers and name attempts in the log."""
    return [f"{place}:{prompt}" for prompt in prompts]


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
        self.engine.sync(number * self.settings.sync_steps)
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
        """Adds a chunk to the log."""
        with self._news:
            first = canary_rollouts(groups)
            if number == self._version and all((rollout.versions[rollout.sampled] == number).all() for rollout in first):
                self.canary(first, number)
            self.log.add_chunk(number, chosen, chunk_names(place, chosen), groups)
            self._ready[number] += self._groups(self.log.chunks[-1])
            self._running[number] -= len(chosen)
            self._news.notify_all()
