"""The result of an inspection of logs: counts, samples, and verdicts on whether a drafter and a student are worth training. The
thresholds are rules of thumb; each check says why it matters."""

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
        taken = sum(decision["rows"] for decision in self.decisions if decision["rule"] in rules)
        return taken / self.sample_rows if self.sample_rows else 0.0


@dataclass(frozen=True)
class Threshold:
    """A bound of a measure, and why it matters."""

    measure: str
    bound: float
    why: str
    unit: str = "f"
    at_most: bool = False

    def check(self, value: float, about: str = "", more: str = "") -> ThresholdCheck:
        """about: before the value; more: goes on from `why`."""
        wanted = f"at {'most' if self.at_most else 'least'} {self.bound:,.0{self.unit}}"
        passed = value <= self.bound if self.at_most else value >= self.bound
        return ThresholdCheck(self.measure, about + _apart(value, self.bound, self.unit), wanted, passed, self.why + more)


FEW_ROWS = 500
COPYING, SOME_COPYING = 1.5, 1.15
NARROW_SHAPES = 20
LEFT = "rows left after cleaning and duplicates"
DRAFTER_ROWS = Threshold(LEFT, 2_000, "a one-layer drafter needs some thousand answers to follow its target")
STUDENT_ROWS = Threshold(LEFT, 5_000, "a smaller model must see most kinds of requests in training")
ANSWER_TOKENS = Threshold(
    "tokens in an answer, on average", 32, "drafting saves decoding steps; a short answer spends its time on the prompt"
)
VOLUME = Threshold(
    "answer tokens a day",
    1_000_000,
    "below it a GPU is mostly idle: faster or smaller weights save little money, though they may still save time",
)
FAILED = Threshold(
    "requests that failed or hold no answer",
    0.2,
    "more than that is an error of the producer: fix it before training on the rest",
    "%",
    at_most=True,
)
NARROW = Threshold(
    f"traffic in the {NARROW_SHAPES} most frequent prompt shapes",
    0.5,
    "narrow traffic is what a student can take over; this one is spread like ",
    "%",
)
COPIES = Threshold(
    "copies of other rows",
    0.5,
    "when most requests repeat, a cache in front of the model is the cheaper first step",
    "%",
    at_most=True,
)


def verdicts_of(inspection: Inspection) -> list[Verdict]:
    rows = inspection.totals["rows"]
    if not rows:
        nothing = "there is feedback, but no request with its answer"
        return [Verdict(question, "no rows", nothing, []) for question in ("a drafter", "a student")]
    usable = round(rows * inspection.usable_share)
    about = "at most about " if inspection.sampled else ""
    failed = inspection.dropped("error", "unreadable", "empty", "prompt_only") if inspection.sample_rows else 1.0
    shared = [VOLUME.check(inspection.totals["tokens_out"] / max(inspection.totals["days"], 1)), FAILED.check(failed)]
    drafter = [DRAFTER_ROWS.check(usable, about), ANSWER_TOKENS.check(inspection.totals["tokens_out"] / rows), *shared]
    answer, sentence = _answer(drafter, usable)
    student = [STUDENT_ROWS.check(usable, about), *_of_a_student(inspection), *shared]
    return [
        Verdict("a drafter", answer, f"{sentence} {_copying(inspection.acceptance.get('K3'))}", drafter),
        Verdict("a student", *_answer(student, usable), student),
    ]


def _copying(tau: float | None) -> str:
    if tau is None:
        return "No answer was long enough to measure an n-gram drafter."
    if tau >= COPYING:
        return (
            f"Answers copy much: an n-gram drafter, which needs no training, would emit {tau:.2f} tokens a forward with "
            "K = 3. Switch that on first; a trained drafter must beat it."
        )
    if tau >= SOME_COPYING:
        return f"Answers copy some: an n-gram drafter would emit {tau:.2f} tokens a forward; a trained one should give more."
    return f"Answers copy next to nothing (n-gram: {tau:.2f} tokens a forward): only a trained drafter can help."


def _of_a_student(inspection: Inspection) -> list[ThresholdCheck]:
    totals, shares = inspection.totals, [shape["share"] for shape in inspection.shapes]
    spread = math.exp(-sum(share * math.log(share) for share in shares)) if shares else 0.0
    copies = max(1 - totals["different_rows"] / totals["rows"], inspection.dropped("exact_duplicate", "near_duplicate"))
    narrow = NARROW.check(sum(shares[:NARROW_SHAPES]), more=counted(round(spread), "equal shape"))
    return [narrow, COPIES.check(copies)]


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
    if missing == [VOLUME.measure]:
        return "possible", "The rows suffice; at this volume it would save time rather than money."
    return "not yet", f"Against it: {'; '.join(missing)}."
