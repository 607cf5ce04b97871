"""How good a model's answers to held-out prompts are, before, during and after reinforcement fine-tuning.

Prompts and random numbers are the same each time, so a difference is one of weights."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from model_ops.answers import Engine, RolloutMaker, SampledPrompt, last_of_attempts


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


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
