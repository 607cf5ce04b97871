"""The result of an inspection of logs: counts, samples, and verdicts on whether a drafter and a student are worth training.
The thresholds are rules of thumb; each check says why it matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from model_ops.jobs import counted
from resources.reading import UnreadKey


@dataclass(frozen=True)
class ThresholdCheck:
    """One measure against its threshold, and why that matters."""

    name: str
    value: str
    wanted: str
    passed: bool
    why: str


@dataclass(frozen=True)
class Verdict:
    """Whether a drafter or a student is worth training."""

    question: str
    answer: str
    """Yes, possible, not yet, or no rows."""
    sentence: str
    checks: list[ThresholdCheck]


@dataclass
class Inspection:
    """Everything that was found. Shares are fractions of 1; token counts are from the log if it has them."""

    uris: list[str]
    sampled: bool
    sample_rows: int
    read: int
    totals: dict[str, Any]
    formats: list[dict[str, Any]]
    days: list[dict[str, Any]]
    workloads: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    models: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    repeated: dict[str, Any]
    feedback: list[dict[str, Any]]
    decisions: list[dict[str, Any]] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    pii: list[dict[str, Any]] = field(default_factory=list)
    languages: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    sessions: dict[str, Any] = field(default_factory=dict)
    with_feedback: dict[str, Any] = field(default_factory=dict)
    acceptance: dict[str, Any] = field(default_factory=dict)
    limited_to: int | None = None
    failed: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    proposed: dict[str, dict[str, str]] = field(default_factory=dict)
    """`fields` that would read the records of no known format, by uri: guesses to check."""
    unread: dict[str, list[UnreadKey]] = field(default_factory=dict)
    """Keys of the records that nothing reads, by uri."""
    clashes: dict[str, int] = field(default_factory=dict)
    """Numbers of records in which two names of one column contradict each other, by what was read."""

    @property
    def usable_share(self) -> float:
        """The share of the sampled rows that the rules with their defaults would keep."""
        rows = sum(decision["rows"] for decision in self.decisions if decision["rule"] == "kept")
        return rows / self.sample_rows if self.sample_rows else 0.0

    def dropped(self, *rules: str) -> float:
        """The share of the sampled rows that these rules drop."""
        taken = sum(decision["rows"] for decision in self.decisions if decision["rule"] in rules)
        return taken / self.sample_rows if self.sample_rows else 0.0


DRAFTER_ROWS = 2_000
STUDENT_ROWS = 5_000
FEW_ROWS = 500
ANSWER_TOKENS = 32
TOKENS_A_DAY = 1_000_000
COPYING, SOME_COPYING = 1.5, 1.15
NARROW_SHAPES, NARROW_SHARE = 20, 0.5
MOST_DUPLICATES = 0.5
MOST_FAILED = 0.2
VOLUME = "answer tokens a day"


def verdicts_of(inspection: Inspection) -> list[Verdict]:
    """The verdicts on a drafter and on a student."""
    rows = inspection.totals["rows"]
    if not rows:
        nothing = "there is feedback, but no request with its answer"
        return [Verdict(question, "no rows", nothing, []) for question in ("a drafter", "a student")]
    usable = round(rows * inspection.usable_share)
    about = "at most about " if inspection.sampled else ""
    days = max(inspection.totals["days"], 1)
    a_day = inspection.totals["tokens_out"] / days
    volume = _at_least(
        VOLUME,
        a_day,
        TOKENS_A_DAY,
        "below it a GPU is mostly idle: faster or smaller weights save little money, though they may still save time",
    )
    failed = inspection.dropped("error", "unreadable", "empty", "prompt_only") if inspection.sample_rows else 1.0
    health = _at_most(
        "requests that failed or hold no answer",
        failed,
        MOST_FAILED,
        "more than that is an error of the producer: fix it before training on the rest",
    )
    return [_drafter(inspection, usable, about, volume, health), _student(inspection, usable, about, volume, health)]


def _drafter(inspection: Inspection, usable: int, about: str, volume: ThresholdCheck, health: ThresholdCheck) -> Verdict:
    mean = inspection.totals["tokens_out"] / inspection.totals["rows"]
    tau = inspection.acceptance.get("K3")
    checks = [
        _at_least(
            "rows left after cleaning and duplicates",
            usable,
            DRAFTER_ROWS,
            "a one-layer drafter needs some thousand answers to follow its target",
            about=about,
        ),
        _at_least(
            "tokens in an answer, on average",
            mean,
            ANSWER_TOKENS,
            "drafting saves decoding steps; a short answer spends its time on the prompt",
        ),
        volume,
        health,
    ]
    if tau is None:
        copying = "No answer was long enough to measure an n-gram drafter."
    elif tau >= COPYING:
        copying = (
            f"Answers copy much: an n-gram drafter, which needs no training, would emit {tau:.2f} tokens a forward with "
            "K = 3. Switch that on first; a trained drafter must beat it."
        )
    elif tau >= SOME_COPYING:
        copying = f"Answers copy some: an n-gram drafter would emit {tau:.2f} tokens a forward; a trained one should give more."
    else:
        copying = f"Answers copy next to nothing (n-gram: {tau:.2f} tokens a forward): only a trained drafter can help."
    answer, sentence = _answer(checks, usable)
    return Verdict("a drafter", answer, f"{sentence} {copying}", checks)


def _student(inspection: Inspection, usable: int, about: str, volume: ThresholdCheck, health: ThresholdCheck) -> Verdict:
    top = sum(shape["share"] for shape in inspection.shapes[:NARROW_SHAPES])
    spread = (
        math.exp(-sum(shape["share"] * math.log(shape["share"]) for shape in inspection.shapes)) if inspection.shapes else 0.0
    )
    copies = max(
        1 - inspection.totals["different_rows"] / inspection.totals["rows"],
        inspection.dropped("exact_duplicate", "near_duplicate"),
    )
    checks = [
        _at_least(
            "rows left after cleaning and duplicates",
            usable,
            STUDENT_ROWS,
            "a smaller model must see most kinds of requests in training",
            about=about,
        ),
        _at_least(
            f"traffic in the {NARROW_SHAPES} most frequent prompt shapes",
            top,
            NARROW_SHARE,
            f"narrow traffic is what a student can take over; this one is spread like {counted(round(spread), 'equal shape')}",
            "%",
        ),
        _at_most(
            "copies of other rows",
            copies,
            MOST_DUPLICATES,
            "when most requests repeat, a cache in front of the model is the cheaper first step",
        ),
        volume,
        health,
    ]
    return Verdict("a student", *_answer(checks, usable), checks)


def _at_least(name: str, value: float, bound: float, why: str, unit: str = "f", about: str = "") -> ThresholdCheck:
    wanted = f"at least {bound:,.0{unit}}"
    return ThresholdCheck(name, about + _apart(value, bound, unit), wanted, value >= bound, why)


def _at_most(name: str, share: float, bound: float, why: str) -> ThresholdCheck:
    return ThresholdCheck(name, _apart(share, bound, "%"), f"at most {bound:z.0%}", share <= bound, why)


def _apart(value: float, bound: float, unit: str) -> str:
    """A number with as few decimals as tell it from the bound that it is compared with."""
    written = (f"{value:z,.{digits}{unit}}" for digits in range(17) if f"{value:.{digits}{unit}}" != f"{bound:.{digits}{unit}}")
    return next(written, f"{bound:,.0{unit}}")


def _answer(checks: list[ThresholdCheck], usable: int) -> tuple[str, str]:
    missing = [check.name for check in checks if not check.passed]
    if not missing:
        return "yes", "All checks pass."
    if usable < FEW_ROWS:
        return "not yet", f"Too little to go by: {counted(usable, 'usable row')}. Collect more, or add seeds."
    if missing == [VOLUME]:
        return "possible", "The rows suffice; at this volume it would save time rather than money."
    return "not yet", f"Against it: {'; '.join(missing)}."
