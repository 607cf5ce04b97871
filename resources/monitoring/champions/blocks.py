"""Windows of serving_metrics joined into blocks of one length: short windows of one session are alike, blocks are less so."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LONGEST_WINDOW = timedelta(hours=1)
"""A longer window belongs to no block."""


@dataclass(frozen=True)
class MetricsWindow:
    start: datetime
    end: datetime
    drafts: int | None = None
    accepted_tokens: int | None = None
    """`drafts`, `accepted_tokens`: None where the server reports none; so requests (that ended) and errors."""
    requests: int | None = None
    errors: int | None = None


@dataclass(frozen=True)
class WindowBlock:
    """The sums of the windows that begin in it."""

    start: datetime
    drafts: int
    accepted_tokens: int
    requests: int
    errors: int

    @property
    def tau(self) -> float:
        """Acceptance length. Raises ZeroDivisionError without drafts."""
        return 1 + self.accepted_tokens / self.drafts

    @property
    def error_share(self) -> float:
        """Requests without an answer by a fault of the server, of all of them."""
        return self.errors / max(self.requests, self.errors)


def blocks_of(windows: Sequence[MetricsWindow], minutes: int, until: datetime | None = None) -> list[WindowBlock]:
    """Blocks in order, aligned to whole multiples since 1970. until: only blocks that are over by then."""
    seconds = 60 * minutes
    inside: dict[int, list[MetricsWindow]] = {}
    for window in windows:
        if window.end > window.start and window.end - window.start <= LONGEST_WINDOW:
            inside.setdefault(int(window.start.timestamp() // seconds), []).append(window)
    blocks = [_block(datetime.fromtimestamp(place * seconds, UTC), inside[place]) for place in sorted(inside)]
    return [each for each in blocks if until is None or each.start + timedelta(minutes=minutes) <= until]


def _block(start: datetime, windows: Sequence[MetricsWindow]) -> WindowBlock:
    return WindowBlock(
        start,
        *(
            sum(getattr(window, name) or 0 for window in windows)
            for name in ("drafts", "accepted_tokens", "requests", "errors")
        ),
    )
