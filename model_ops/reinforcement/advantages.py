"""Advantages of rollouts: how much better each is than the others of its prompt, as pure functions of their grades;
and what a training's log says of its rollouts as a whole.

A group is the grades of one prompt's rollouts. A rollout without a grade (None) has no advantage and does not count for the
others. `tokens` are the learnt tokens of each rollout, which only `reinforce_plus` reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from model_ops.answers import RolloutLog, last_of_attempts
from model_ops.graders import Grade

STD_EPSILON = 1e-6
"""Added to a standard deviation. Groups without any spread are not learnt, so it only bounds tiny ones."""
EQUAL = 1e-6
"""Grades of a group that differ by no more are all equal: floats of one reward computed in two orders differ by less."""

Group = Float[np.ndarray, " rollouts"]
Grades = Sequence[float | None]


def group_standardised(grades: Grades) -> Group:
    """(r - mean) / (std + epsilon) within the group, with the sample's standard deviation (n - 1). GRPO: DeepSeekMath, arXiv
    2402.03300, section 4.1; the deviation as in TRL's and verl's code."""
    values = _values(grades)
    if np.isfinite(values).sum() < 2:
        return values * np.nan
    return (values - np.nanmean(values)) / (np.nanstd(values, ddof=1) + STD_EPSILON)


def centred(grades: Grades) -> Group:
    """r - mean of the group. Dr.GRPO, arXiv 2503.20783: dividing by the deviation overweights prompts that are
    nearly always or nearly never solved."""
    values = _values(grades)
    return values - np.nanmean(values) if np.isfinite(values).any() else values


def leave_one_out(grades: Grades) -> Group:
    """r - mean of the other rollouts of the group: n / (n - 1) times the centred one. RLOO, arXiv 2402.14740."""
    values = _values(grades)
    count = np.isfinite(values).sum()
    return centred(grades) * (count / (count - 1)) if count > 1 else values * np.nan


def _of_each(function: Callable[[Grades], Group]) -> AdvantageFunction:
    return lambda groups, tokens: [function(grades) for grades in groups]


def reinforce_plus(groups: Sequence[Grades], tokens: Sequence[Sequence[float]]) -> list[Group]:
    """Centred by group, then divided into z-scores over all learnt tokens of the batch, so that no prompt has a scale of its
    own. REINFORCE++-baseline, arXiv 2501.03262."""
    centred_groups = [centred(grades) for grades in groups]
    values, weights = np.concatenate(centred_groups), np.concatenate([np.asarray(each, float) for each in tokens])
    known = np.isfinite(values) & (weights > 0)
    if not known.any():
        return centred_groups
    mean = np.average(values[known], weights=weights[known])
    deviation = np.sqrt(np.average((values[known] - mean) ** 2, weights=weights[known]))
    return [(each - mean) / (deviation + STD_EPSILON) for each in centred_groups]


AdvantageFunction = Callable[[Sequence[Grades], Sequence[Sequence[float]]], list[Group]]
ADVANTAGES: dict[str, AdvantageFunction] = {
    "group": _of_each(group_standardised),
    "centred": _of_each(centred),
    "leave_one_out": _of_each(leave_one_out),
    "reinforce_plus": reinforce_plus,
}
"""By the names of `rft.advantage`."""


def advantages_of(
    name: str, groups: Sequence[Grades], tokens: Sequence[Sequence[int]], attempts: Sequence[Sequence[int]]
) -> list[Group]:
    """The advantage of each rollout. attempts: the number of each rollout's attempt. Rollouts of one attempt have its grade; it
    counts once in its group, and they have one advantage."""
    if not groups:
        return []
    unique = [np.unique(of_group, return_index=True, return_inverse=True) for of_group in attempts]
    grades = [[of_group[place] for place in firsts] for of_group, (_, firsts, _) in zip(groups, unique, strict=True)]
    counts = [np.bincount(owners, weights).tolist() for weights, (_, _, owners) in zip(tokens, unique, strict=True)]
    return [each[owners] for each, (_, _, owners) in zip(ADVANTAGES[name](grades, counts), unique, strict=True)]


def all_equal(grades: Grades) -> bool:
    """Whether a group says nothing of which answer is better: fewer than two grades, or all of them equal."""
    known = [grade for grade in grades if grade is not None]
    return len(known) < 2 or max(known) - min(known) <= EQUAL


def passes(grade: float | None, passing_grade: float) -> bool:
    """Whether a grade is that of a right answer; none is not."""
    return grade is not None and grade >= passing_grade


def _values(grades: Grades) -> Group:
    return np.array([np.nan if grade is None else grade for grade in grades], float)


def run_counts(log: RolloutLog, passing_grade: float) -> dict[str, float]:
    """Counts of prompts and rollouts, and mean grade and length of the first and the last round."""
    by_prompt = [(place, group) for chunk in log.chunks for place, group in zip(chunk.prompts, chunk.numbers, strict=True)]
    groups, asked = [group for _, group in by_prompt], {place for place, _ in by_prompt}
    rollouts = [rollout for group in groups for rollout in group]
    passed = {place for place, group in by_prompt for rollout in group if passes(rollout.grade.value, passing_grade)}
    counts: dict[str, float] = {
        "asked_prompts": len(groups),
        "different_prompts": len(asked),
        "never_passed_prompts": len(asked - passed),
        "rollouts": len(rollouts),
        "learnt_rollouts": sum(outcome.learnt for outcome in log.outcomes.values()),
        "sampled_tokens": sum(rollout.tokens for rollout in rollouts),
        "cut_rollouts": sum(not rollout.ended for rollout in rollouts),
        "failed_grades": sum(bool(rollout.grade.problem) for rollout in rollouts),
        "ungraded_rollouts": sum(rollout.grade.value is None for rollout in rollouts),
        "equal_groups": sum(all_equal([rollout.grade.value for rollout in group]) for group in groups),
    }
    rounds = {chunk.round for chunk in log.chunks}
    for when, round in (("first", min(rounds)), ("last", max(rounds))):
        of_round = [group for chunk in log.of_round(round) for group in chunk.numbers]
        attempts = [attempt for group in of_round for attempt in last_of_attempts(group)]
        grades = [attempt.grade.value for attempt in attempts if attempt.grade.value is not None]
        counts[f"{when}_grade"] = float(np.mean(grades)) if grades else math.nan
        counts[f"{when}_tokens"] = sum(rollout.tokens for group in of_round for rollout in group) / len(attempts)
    return counts


def staleness_counts(log: RolloutLog, sync_steps: int) -> dict[str, float]:
    """How old the weights were that sampled the first token of what was learnt, in steps."""
    outcomes, ages = log.outcomes, list[int]()
    for chunk in log.chunks:
        for number, rollout in enumerate((each for group in chunk.numbers for each in group), chunk.first):
            if number in outcomes and outcomes[number].learnt:
                ages.append(chunk.round * sync_steps - rollout.version)
    return {"staleness": float(np.mean(ages or [0])), "largest_staleness": max(ages or [0])}


def grades_of_chunks(log: RolloutLog, share: float = 1.0) -> list[Grade]:
    """Every grade of the last chunks. share: of the chunks, at least one."""
    last = log.chunks[-max(1, int(share * len(log.chunks))) :]
    return [rollout.grade for chunk in last for group in chunk.numbers for rollout in group]
