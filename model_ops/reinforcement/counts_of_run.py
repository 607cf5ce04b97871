"""Numbers of a whole reinforcement fine-tuning, from its log: what a run's metrics and warnings say."""

import math

import numpy as np

from model_ops.answers import RolloutLog, last_of_attempts
from model_ops.graders import Grade
from model_ops.reinforcement.advantages import all_equal, passes


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
