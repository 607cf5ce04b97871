"""What a log should say of the capture layer: once when trouble begins, and once when it is over.

    news = News("s3://logs/tutor")
    news.of(problem="access denied", not_kept=0)       # ["s3://logs/tutor takes no objects (access denied): ..."], then []
"""

from __future__ import annotations


class News:
    """place: the store's."""

    def __init__(self, place: str):
        self._place, self._problem, self._not_kept, self._is_losing = place, "", 0, False

    def of(self, problem: str, not_kept: int) -> list[str]:
        """Sentences since the last call. problem: why the store took nothing; "" if it did. not_kept: exchanges that were lost
        since the start."""
        found = []
        if bool(problem) != bool(self._problem):
            found.append(f"{self._place} takes no objects ({problem}): they wait in the journal" if problem else
                         f"{self._place} takes objects again")
        is_losing = not_kept > self._not_kept
        if is_losing != self._is_losing:
            found.append("exchanges are not kept now: /capture/status says how many and why" if is_losing else
                         f"exchanges are kept again; {not_kept:,} were not since the start")
        self._problem, self._not_kept, self._is_losing = problem, not_kept, is_losing
        return found
