"""Asks the rounds of a reinforcement fine-tuning: draws prompts, has them answered a chunk at a time, and keeps each in the
log.

The state is the log: a run that continues finds its rounds there. `asynchronous_asker.py` asks ahead of the training.
"""

import math
import time
from collections.abc import Callable, Sequence

from model_ops.answers import Engine, Rollout, RolloutChunk, RolloutLog, RolloutMaker, SampledPrompt, last_of_attempts
from model_ops.jobs import Progress
from model_ops.reinforcement.canary import canary_rollouts
from model_ops.reinforcement.prompt_pool import PromptPool
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_groups import Group, chunk_groups, round_numbers

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
