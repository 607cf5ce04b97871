"""How good a model's answers to held-out prompts are, before, during and after reinforcement fine-tuning.

Prompts and random numbers are the same each time, so a difference is one of weights."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from model_ops.answers import Engine, RolloutMaker, SampledPrompt, last_of_attempts
from model_ops.reinforcement.rft_settings import RftSettings

RARE = 0.02
"""Share of passed answers below which, and of failed ones below which, nearly all groups have equal grades."""
MANY_CUT = 0.5


class HeldOutRollouts:
    """maker: with the grader of held-out answers. engine: takes the model's present weights at each call."""

    def __init__(
        self,
        prompts: Sequence[SampledPrompt],
        maker: RolloutMaker,
        engine: Engine,
        passing_grade: float,
        seed: int,
        steps_done: Callable[[], int],
    ):
        self._prompts, self._maker, self._engine = prompts, maker, engine
        self._passing_grade, self._seed, self._steps_done = passing_grade, seed, steps_done

    def __call__(self) -> dict[str, float]:
        self._engine.sync(self._steps_done())
        names = [f"held out:{place}" for place in range(len(self._prompts))]
        groups = self._maker.rollouts(self._prompts, names, self._engine, self._seed)
        attempts = [last_of_attempts(group) for group in groups]
        graded = [[each.grade.value for each in group if each.grade.value is not None] for group in attempts]
        passed = [[value >= self._passing_grade for value in group] for group in graded if group]
        each, count = [attempt for group in attempts for attempt in group], self._maker.answers
        return {
            "validation_reward": _mean([value for group in graded for value in group]),
            "validation_pass_rate": _mean([sum(of_prompt) / len(of_prompt) for of_prompt in passed]),
            **({f"validation_pass_at_{count}": _mean([any(of_prompt) for of_prompt in passed])} if count > 1 else {}),
            "validation_answer_tokens": sum(int(part.sampled.sum()) for group in groups for part in group) / len(each),
            "validation_cut": _mean([not attempt.ended for attempt in each]),
        }


def doubts(numbers: Mapping[str, float], settings: RftSettings) -> Iterator[tuple[str, str]]:
    """(what is wrong, remedy) of a start from which reinforcement fine-tuning learns little. numbers: of HeldOutRollouts."""
    rate, cut = numbers["validation_pass_rate"], numbers["validation_cut"]
    limit = f"max_new_tokens {settings.max_new_tokens}"
    if settings.overlong == "mask" and cut > MANY_CUT:
        yield (
            f"before the first step {cut:z.0%} of the answers are cut at {limit}, and overlong: mask learns nothing of these",
            "raise rft.max_new_tokens, or set rft.overlong to none where an answer may be graded without its end",
        )
    if rate < RARE:
        raised = f"raise rft.max_new_tokens, which cuts {cut:z.0%} of them, " if cut > MANY_CUT else ""
        yield (
            f"before the first step {rate:z.0%} of the answers pass: answers that are all wrong teach nothing",
            f"{raised}choose easier prompts, fine-tune on right answers first (sft), or take a grader that grades in parts",
        )
    if rate > 1 - RARE:
        yield f"before the first step {rate:z.0%} of the answers pass: there is little to learn", "choose harder prompts"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
