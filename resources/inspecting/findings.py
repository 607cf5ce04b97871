"""The result of an inspection of logs: counts, samples and verdicts, as plain data.

    found.totals["rows"], found.usable_share, [verdict.answer for verdict in found.verdicts]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from resources.reading.unread_keys import UnreadKey


@dataclass(frozen=True)
class Check:
    """One measure against its threshold, and why that matters."""

    name: str
    found: str
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
    checks: list[Check]


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
        kept = sum(decision["rows"] for decision in self.decisions if decision["rule"] == "kept")
        return kept / self.sample_rows if self.sample_rows else 0.0

    def dropped(self, *rules: str) -> float:
        """The share of the sampled rows that these rules drop."""
        taken = sum(decision["rows"] for decision in self.decisions if decision["rule"] in rules)
        return taken / self.sample_rows if self.sample_rows else 0.0
