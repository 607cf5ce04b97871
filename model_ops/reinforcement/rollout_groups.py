"""What a round teaches: groups of graded rollouts become learnt rollouts with their advantages, as pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_ops.answers import Rollout, RolloutChunk, SampledPrompt, last_of_attempts
from model_ops.reinforcement.advantages import advantages_of, all_equal, passes
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import LearntRollout, Numbers

LearntGroup = tuple[str, list[LearntRollout]]
"""Id of a prompt's row, and its rollouts that are learnt."""


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt. first: number of the first one in the log."""

    prompt: int
    rollouts: list[Rollout]
    first: int
    grades: list[float | None]
    """With the penalty of long answers."""

    @property
    def teaches(self) -> bool:
        return not all_equal(self.grades)

    @property
    def attempts(self) -> list[Rollout]:
        """The last rollout of each attempt, which has several where the chat template rewrote what was said."""
        return last_of_attempts(self.rollouts)


def chunk_groups(chunk: RolloutChunk, settings: RftSettings, longest: int) -> list[Group]:
    """The groups of a chunk. longest: most tokens of an answer in its round."""
    groups, first = list[Group](), chunk.first
    for prompt, rollouts in zip(chunk.prompts, chunk.groups(), strict=True):
        groups.append(Group(prompt, rollouts, first, [penalised_grade(rollout, settings, longest) for rollout in rollouts]))
        first += len(rollouts)
    return groups


def penalised_grade(rollout: Rollout, settings: RftSettings, longest: int) -> float | None:
    """The grade, less the penalty of long answers: 0 up to overlong_tokens before the limit, then rising to 1 at the limit
    (DAPO, arXiv 2503.14476, equation 13)."""
    if settings.overlong != "penalty" or rollout.grade.value is None:
        return rollout.grade.value
    over = settings.overlong_tokens or max(1, longest // 5)
    return rollout.grade.value - min(1.0, max(0.0, (int(rollout.sampled.sum()) - longest + over) / over))


def learnt_groups(
    groups: Sequence[Group], prompts: Sequence[SampledPrompt], settings: RftSettings, wanted: int
) -> list[LearntGroup]:
    """The rollouts of each group that teaches, with their advantages. wanted: prompts that the round shall learn; those that
    teach nothing add no gradient but stay in the denominator, unless others were asked in their place."""

    def learnt_tokens(rollout: Rollout) -> int:
        return 0 if settings.overlong == "mask" and not rollout.ended else int(rollout.sampled.sum())

    def denominator(group: Group) -> float:
        tokens = [learnt_tokens(each) for each, grade in zip(group.rollouts, group.grades, strict=True) if grade is not None]
        return sum(length * scale_and_share(length, settings)[1] for length in tokens if length)

    taught = [group for group in groups if group.teaches]
    equal = [group for group in groups if not group.teaches][: max(0, wanted - len(taught))]
    own = sum(map(denominator, taught))
    widened = 1 + sum(map(denominator, equal)) / own if own else 1.0
    lengths = [[learnt_tokens(rollout) for rollout in group.rollouts] for group in taught]
    attempts = [[rollout.attempt for rollout in group.rollouts] for group in taught]
    advantages = advantages_of(settings.compared, [group.grades for group in taught], lengths, attempts)
    learnt = list[LearntGroup]()
    for group, of_group, tokens in zip(taught, advantages, lengths, strict=True):
        members = [
            LearntRollout(
                rollout,
                group.first + place,
                float(advantage),
                *scale_and_share(length, settings, widened),
                passed=passes(rollout.grade.value, settings.passing_grade),
            )
            for place, (rollout, advantage, length) in enumerate(zip(group.rollouts, of_group, tokens, strict=True))
            if length and math.isfinite(advantage)
        ]
        learnt += [(prompts[group.prompt].row_id, members)] if members else []
    return learnt


def scale_and_share(tokens: int, settings: RftSettings, widened: float = 1.0) -> tuple[float, float]:
    """Of each token of a rollout: its weight in the sum of the loss, and `widened` times that in the denominator. The constant
    denominator is that of Dr.GRPO (arXiv 2503.20783), so a token counts the same in answers of any length."""
    if settings.mean_over == "token":
        return 1.0, widened
    return (
        (1 / tokens, widened / tokens) if settings.mean_over == "rollout" else (1.0, widened * settings.max_new_tokens / tokens)
    )


def round_numbers(groups: Sequence[Group], passing_grade: float, gap: float | None) -> Numbers:
    """What metrics.jsonl says of a round. gap: of the canary."""
    attempts = [rollout for group in groups for rollout in group.attempts]
    grades = [rollout.grade.value for rollout in attempts if rollout.grade.value is not None]
    parts: dict[str, list[float]] = {}
    for rollout in attempts:
        for name, value in rollout.grade.parts.items():
            parts.setdefault(name, []).append(value)
    passed = [
        [passes(rollout.grade.value, passing_grade) for rollout in group.attempts if rollout.grade.value is not None]
        for group in groups
    ]
    graded, count = [of_group for of_group in passed if of_group], float(len(attempts))
    numbers: dict[str, tuple[float, float]] = {
        "reward": (float(np.sum(grades)), float(len(grades))),
        **{f"reward_{name}": (float(np.sum(values)), float(len(values))) for name, values in sorted(parts.items())},
        "pass_rate": (float(sum(map(sum, passed))), float(len(grades))),
        "passed_once": (float(sum(map(any, graded))), float(len(graded))),
        "equal_groups": (float(sum(not group.teaches for group in groups)), float(len(groups))),
        "ungraded": (count - len(grades), count),
        "cut": (float(sum(not rollout.ended for rollout in attempts)), count),
        "answer_tokens": (float(sum(rollout.sampled.sum() for group in groups for rollout in group.rollouts)), count),
        "asked_prompts": (float(len(groups)), 1.0),
    }
    return numbers if gap is None or math.isnan(gap) else {**numbers, "canary_gap": (gap, 1.0)}


def learnt_ages(learnt: Sequence[LearntGroup], step: int) -> Numbers:
    """How old the weights were that sampled what a step learns, in steps: mean over tokens, and the largest."""
    rollouts = [member.rollout for _, members in learnt for member in members]
    ages = np.concatenate([[0] * (not rollouts), *(step - rollout.versions[rollout.sampled] for rollout in rollouts)])
    return {"staleness": (float(ages.sum()), float(len(ages))), "largest_staleness": (float(ages.max()), 1.0)}
