"""Advantages of rollouts: how much better each is than the others of its prompt, as pure functions of their grades.

A group is the grades of one prompt's rollouts. A rollout without a grade (None) has no advantage and does not count for the
others. `tokens` are the learnt tokens of each rollout, which only `reinforce_plus` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

STD_EPSILON = 1e-6
"""Added to a standard deviation. Groups without any spread are not learnt, so it only bounds tiny ones."""
EQUAL = 1e-6
"""Grades of a group that differ by no more are all equal: floats of one reward computed in two orders differ by less."""

Group = Float[np.ndarray, " rollouts"]
Grades = Sequence[float | None]


def group_standardised(grades: Grades) -> Group:
    """(r - mean) / (std + epsilon) within the group, with the sample's standard deviation (n - 1).

    GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1; the deviation as in TRL's and verl's code."""
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
