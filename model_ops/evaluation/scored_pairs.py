"""What a reward model's scores of held-out pairs say: accuracy, calibration, length, and whether it may grade.

    report = reward_report(pairs, fitted_on=validation, longer_share=0.61)     # JSON values, for reward.json and the card
    missed = missed_bounds(report, gate)                                       # a sentence for each bound that does not hold

Pairs of one session are alike, so intervals are over sessions. Two trivial rules are measured beside the model: that the longer
answer wins, and that what most training pairs show (longer or shorter) does. Lengths are in tokens.

- accuracy: pairs with the higher score on the chosen answer; equal scores count half. Wilson's interval (1927) with the
  effective number of pairs n / (variance of the ratio by session / binomial variance), Korn and Graubard 1998.
- above_longer: accuracy minus that of the longer answer on the same pairs; Student's t over sessions.
- temperature: minimises the log-loss of sigma(difference / temperature) (Guo et al., arXiv 1706.04599). ece: mean distance of
  confidence and accuracy over ten bins of confidence from 0.5 to 1, weighted by pairs.
- length_matched_accuracy: mean of the accuracies of pairs whose chosen answer is longer and of those whose chosen answer is
  shorter; None without one of the two. A model that sees length alone has 0.5.
- spearman: rank correlation of score and length over all answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from model_ops.drafting import moves, student, variance

FEWEST_TO_FIT = 20
"""Pairs below which no temperature is fitted."""
BINS = 10


@dataclass(frozen=True)
class ScoredPairs:
    """Scores of pairs, chosen answers first."""

    scores: Float[np.ndarray, "pairs 2"]
    lengths: Int[np.ndarray, "pairs 2"]
    sessions: Sequence[str]
    reasons: Sequence[str]
    """Source of each pair, such as `edited`."""
    is_later: Bool[np.ndarray, " pairs"]
    """Whether its feedback came after all that the model was trained on."""

    @property
    def differences(self) -> Float[np.ndarray, " pairs"]:
        return self.scores[:, 0] - self.scores[:, 1]


def reward_report(pairs: ScoredPairs, fitted_on: ScoredPairs, longer_share: float) -> dict[str, Any]:
    """The report on held-out pairs. fitted_on: other held-out pairs, for the temperature. longer_share: of the training pairs,
    those whose chosen answer is the longer one. Intervals and rates that have no pairs are None."""
    won, longer = _wins(pairs.differences), _wins(pairs.lengths[:, 0] - pairs.lengths[:, 1])
    most = longer if longer_share >= 0.5 else 1 - longer
    sessions, reasons = np.array(pairs.sessions), np.array(pairs.reasons)
    everywhere = np.ones(len(won), dtype=bool)
    parts = {"all": everywhere, **{str(reason): reasons == reason for reason in np.unique(reasons)}, "later": pairs.is_later}
    temperature = fitted_temperature(fitted_on.differences)
    middle, reach = mean_and_reach(won - longer, sessions)
    is_longer = pairs.lengths[:, 0] > pairs.lengths[:, 1]
    is_shorter = pairs.lengths[:, 0] < pairs.lengths[:, 1]
    answers = pairs.scores.ravel()
    return {
        "accuracy": {
            name: {
                **_rate(won[part], sessions[part]),
                "longer_wins": _mean(longer[part]),
                "most_training_pairs": _mean(most[part]),
            }
            for name, part in parts.items()
        },
        "above_longer": {"value": middle, **_ends(middle, reach)},
        "temperature": temperature,
        "fitted_on": len(fitted_on.scores),
        "log_loss": _mean(np.logaddexp(0, -pairs.differences)),
        "calibrated_log_loss": _mean(np.logaddexp(0, -pairs.differences / temperature)),
        "ece": expected_calibration_error(pairs.differences),
        "calibrated_ece": expected_calibration_error(pairs.differences / temperature),
        "length_matched_accuracy": (
            _mean(np.array([won[is_longer].mean(), won[is_shorter].mean()])) if is_longer.any() and is_shorter.any() else None
        ),
        "spearman": spearman(answers, pairs.lengths.ravel()),
        "mean": _mean(answers),
        "deviation": float(answers.std()) if len(answers) > 1 else None,
    }


def missed_bounds(report: dict[str, Any], accuracy: float | None, above_longer: float | None) -> list[str]:
    """A sentence for each bound that the lower end of its interval does not reach."""
    overall = report["accuracy"]["all"]
    if not overall["pairs"]:
        return ["no held-out pair measures it (the test split of the preference dataset is empty)"]
    sentences = []
    for name, wanted, held in (
        ("held-out accuracy", accuracy, overall),
        ("held-out accuracy above that of the longer answer", above_longer, report["above_longer"]),
    ):
        if wanted is not None and (held["low"] is None or held["low"] < wanted):
            low = "unknown, with one session" if held["low"] is None else f"{held['low']:.3f}"
            sentences.append(f"{name} is {held['value']:.3f} with a lower end of {low}, and the gate asks at least {wanted:g}")
    return sentences


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` trials."""
    z = student(math.inf)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def fitted_temperature(differences: Float[np.ndarray, " pairs"]) -> float:
    """The temperature with the lowest log-loss, 0.01 to 100; 1 for too few pairs. The loss is convex in 1 / temperature."""
    if len(differences) < FEWEST_TO_FIT:
        return 1.0
    low, high = 0.01, 100.0  # of 1 / temperature, halved by the sign of the slope
    for _ in range(60):
        middle = math.sqrt(low * high)
        slope = -np.mean(differences * 0.5 * (1 - np.tanh(differences * middle / 2)))
        low, high = (low, middle) if slope > 0 else (middle, high)
    return 1 / math.sqrt(low * high)


def expected_calibration_error(differences: Float[np.ndarray, " pairs"]) -> float | None:
    """The expected calibration error of sigma(|difference|) as the confidence in the higher score."""
    if not len(differences):
        return None
    confidence = 0.5 * (1 + np.tanh(np.abs(differences) / 2))
    bins = np.minimum((BINS * 2 * (confidence - 0.5)).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - _wins(differences), minlength=BINS)
    return float(np.abs(gaps).sum() / len(differences))


def spearman(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's rank correlation, with mean ranks of ties; None where one of the two does not vary."""
    if len(one) < 2 or not np.ptp(one) or not np.ptp(other):
        return None
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _wins(differences: np.ndarray) -> np.ndarray:
    """1 for a positive difference, 0 for a negative one, 0.5 for none."""
    return 0.5 * (1 + np.sign(differences))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _rate(won: np.ndarray, sessions: np.ndarray) -> dict[str, Any]:
    """Share of pairs that are won, with its interval."""
    if not len(won):
        return {"pairs": 0, "sessions": 0, "value": None, "low": None, "high": None}
    share, (counts, sums) = float(won.mean()), _by_session(won, sessions)
    binomial = share * (1 - share) / len(won)
    is_spread = binomial > 0 and len(counts) > 1  # else nothing says how alike the pairs of a session are
    effective = len(won) / max(1.0, variance(moves(counts, sums)) / binomial) if is_spread else len(counts)
    low, high = wilson(share, min(effective, len(won)))
    return {"pairs": len(won), "sessions": len(counts), "value": share, "low": low, "high": high}


def mean_and_reach(values: np.ndarray, sessions: np.ndarray) -> tuple[float | None, float | None]:
    """Mean over pairs and the half width of its 95 % interval; None for the latter with fewer than two sessions."""
    counts, sums = _by_session(values, sessions)
    if len(counts) < 2:
        return _mean(values), None
    if not np.ptp(values):  # no spread, although other pairs might differ: the rule of three
        return float(values.mean()), 3 / len(counts)
    return float(values.mean()), student(len(counts) - 1) * math.sqrt(variance(moves(counts, sums)))


def _ends(middle: float | None, reach: float | None) -> dict[str, float | None]:
    if middle is None or reach is None:
        return {"low": None, "high": None}
    return {"low": middle - reach, "high": middle + reach}


def _by_session(values: np.ndarray, sessions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, sum of the values) of each session."""
    _, place = np.unique(sessions, return_inverse=True)
    return np.bincount(place).astype(float), np.bincount(place, weights=values)
