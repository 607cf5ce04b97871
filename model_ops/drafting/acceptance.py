"""Acceptance statistics of drafters, without torch: tau = tokens per forward of the target = 1 + accepted / forwards, without
the prefill (`tau_of_drafts`: only forwards that verify a draft, as servers count). Intervals are Student's t over prompts and
trainings, since tokens of one answer are not independent. An answer loops if a pattern of 1 to 13 tokens repeats over at least
32."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# fmt: off
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
    2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
)
# fmt: on
"""0.975 quantiles of Student's t for 1 to 18 degrees of freedom: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2."""

NORMAL_975 = 1.95996


def student(freedom: float) -> float:
    """The 0.975 quantile for at least one degree of freedom, whole or not: linear in 1 / freedom, never too small."""
    return float(np.interp(1 / freedom, [0, *(1 / each for each in range(len(T_975), 0, -1))], [NORMAL_975, *T_975[::-1]]))


def moves(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Influence of each sample on the ratio values.sum() / weights.sum(), to first order. The residual of a sample is divided
    by 1 - its share of the weights (jackknife correction), because a heavy sample pulls the ratio towards itself and its
    residual is too small."""
    total = max(float(weights.sum()), 1e-12)
    share = weights / total
    return (values - values.sum() / total * weights) / total / np.where(share < 1, 1 - share, 1)


def variance(parts: np.ndarray) -> float:
    """Variance of a ratio, or of a difference of ratios, from what each sample moves it by."""
    return (len(parts) - 1) / len(parts) * float(np.sum(parts**2))


def error_of(sources: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """(standard error, degrees of freedom) of a sum of independent errors, each with its variance and degrees of freedom."""
    total = sum(each for each, _ in sources)
    if not total:
        return 0.0, 1.0
    return math.sqrt(total), total**2 / sum(each**2 / freedom for each, freedom in sources)


LONGEST_PATTERN = 13
LOOP_TOKENS = 32
SEED_INTERVALS = "Student's t over prompts and trainings"
SHORTEST_BUCKET = 128
"""Prompts with fewer tokens form one group; longer ones are grouped by powers of two."""
MANY_TURNS = 4
LARGEST_EXPONENT = 700.0
"""exp of a larger number is infinite."""


@dataclass(frozen=True)
class AcceptanceRow:
    """Counts for one prompt with one drafter at one temperature; model_ops/evaluation/row_tables.py describes the fields."""

    drafter: str
    temperature: float
    num_speculative_tokens: int
    row_id: str
    workload: str
    prompt_shape: str
    prompt_tokens: int
    turns: int
    has_system: bool
    has_tools: bool
    tokens: int
    finish_reason: str
    looping: bool
    forwards: int
    drafts: int
    drafted: int
    accepted: int
    accepted_at: list[int]
    sampling: str = ""


GROUPS: dict[str, Callable[[AcceptanceRow], str]] = {
    "workload": lambda row: row.workload,
    "prompt_shape": lambda row: row.prompt_shape,
    "prompt_tokens": lambda row: length_bucket(row.prompt_tokens),
    "turns": lambda row: str(row.turns) if row.turns < MANY_TURNS else f"{MANY_TURNS} or more",
    "system": lambda row: "system message" if row.has_system else "none",
    "tools": lambda row: "tools offered" if row.has_tools else "none",
}
"""Groupings of prompts in the report. acceptance.parquet has the columns for any other grouping."""


@dataclass(frozen=True)
class Gain:
    """Relative gain in tau of the second drafter over the first, with its 95 % interval."""

    share: float
    low: float
    high: float
    prompts: int


def summarize(rows: Sequence[AcceptanceRow]) -> dict[str, Any]:
    """Totals over rows of one drafter and temperature: tau with its interval, by position and by group."""
    forwards, accepted = _column(rows, "forwards"), _column(rows, "accepted")
    drafts = sum(row.drafts for row in rows)
    drafted = sum(row.drafted for row in rows)
    positions = np.array([row.accepted_at for row in rows], dtype=np.float64).sum(axis=0)
    return {
        "prompts": len(rows),
        "tokens": sum(row.tokens for row in rows),
        "forwards": int(forwards.sum()),
        "drafts": drafts,
        "drafted": drafted,
        "accepted": int(accepted.sum()),
        **_tau_with_interval(rows),
        "tau_of_drafts": tau_of(drafts, accepted.sum()),
        "acceptance_rate": float(accepted.sum() / drafted) if drafted else 0.0,
        "accepted_by_position": [float(count / max(1.0, forwards.sum())) for count in positions],
        "tau_by": {name: _by(rows, group) for name, group in GROUPS.items()},
        "looping_share": float(np.mean([row.looping for row in rows])),
    }


def tau_of(forwards: float, accepted: float) -> float:
    """Acceptance length: 1 + accepted / forwards; 1 without any forward."""
    return 1 + float(accepted) / float(forwards) if forwards else 1.0


def tau_interval(forwards: np.ndarray, accepted: np.ndarray, most: float) -> tuple[float, float]:
    """95 % interval of tau over prompts, within [1, most], its possible values; of a single prompt, all of these."""
    if not forwards.sum():
        return 1.0, 1.0
    if len(forwards) < 2:
        return 1.0, most
    tau, reach = tau_of(forwards.sum(), accepted.sum()), student(len(forwards) - 1) * variance(moves(forwards, accepted)) ** 0.5
    return max(1.0, tau - reach), min(most, tau + reach)


def paired_gain(first: Sequence[Sequence[AcceptanceRow]], second: Sequence[Sequence[AcceptanceRow]]) -> Gain:
    """Relative gain in acceptance length of the second drafter, on the same prompts at the same temperature.

    Each drafter is given as the rows of one or more trainings (seeds), whose mean tau is compared. The interval covers the
    choice of prompts, the same ones for both drafters, and, with several trainings, of seeds: the variance of the logarithm of
    the ratio is the sum of both (Welch and Satterthwaite). What sampling adds is in both, so that the interval is rather too
    wide than too narrow. Raises ValueError if the prompts or temperatures differ."""
    runs = [*first, *second]
    keys = [sorted((row.row_id, row.temperature) for row in rows) for rows in runs]
    if not keys or not keys[0] or any(key != keys[0] for key in keys[1:]):
        raise ValueError("a paired gain needs the same prompts and temperature under both drafters")
    most, prompts = max(map(_most, runs)), len(keys[0])
    means, moved, sources = [], [], []
    for side in (first, second):
        counts = [
            (_column(rows, "forwards"), _column(rows, "accepted"))
            for rows in (sorted(rows, key=lambda row: (row.row_id, row.temperature)) for rows in side)
        ]
        taus = np.array([tau_of(forwards.sum(), accepted.sum()) for forwards, accepted in counts])
        means.append(float(taus.mean()))
        moved.append(np.mean([moves(*count) for count in counts], axis=0) / means[-1])
        if len(side) > 1:
            sources.append((float(taus.var(ddof=1)) / len(side) / means[-1] ** 2, len(side) - 1))
    share, low, high = means[1] / means[0], 1 / most, most
    if prompts > 1:
        error, freedom = error_of([(variance(moved[1] - moved[0]), prompts - 1), *sources])
        factor = math.exp(min(student(freedom) * error, LARGEST_EXPONENT))
        low, high = max(low, share / factor), min(high, share * factor)
    return Gain(share - 1, low - 1, high - 1, prompts)


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether a pattern of at most 13 tokens repeats without interruption over 32 tokens or more."""
    ids = np.asarray(tokens)
    for period in range(1, LONGEST_PATTERN + 1):
        same = ids[period:] == ids[:-period] if len(ids) > period else np.zeros(0, bool)
        run = 0
        for equal in same.tolist():
            run = run + 1 if equal else 0
            if run + period >= LOOP_TOKENS:
                return True
    return False


def length_bucket(tokens: int) -> str:
    """The group of a prompt's length: `1-127`, `128-255`, `256-511`, ..."""
    low = SHORTEST_BUCKET
    if tokens < low:
        return f"1-{low - 1}"
    while tokens >= 2 * low:
        low *= 2
    return f"{low}-{2 * low - 1}"


def _by(rows: Sequence[AcceptanceRow], group: Callable[[AcceptanceRow], str]) -> dict[str, dict[str, Any]]:
    members: dict[str, list[AcceptanceRow]] = {}
    for row in rows:
        members.setdefault(group(row), []).append(row)
    return {name: {"prompts": len(own), **_tau_with_interval(own)} for name, own in sorted(members.items())}


def _tau_with_interval(rows: Sequence[AcceptanceRow]) -> dict[str, float]:
    forwards, accepted = _column(rows, "forwards"), _column(rows, "accepted")
    low, high = tau_interval(forwards, accepted, _most(rows))
    return {"tau": tau_of(forwards.sum(), accepted.sum()), "tau_low": low, "tau_high": high}


def _column(rows: Sequence[AcceptanceRow], name: str) -> np.ndarray:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def _most(rows: Sequence[AcceptanceRow]) -> float:
    """The largest tau that is possible: every draft is accepted."""
    return 1.0 + max(row.num_speculative_tokens for row in rows)
