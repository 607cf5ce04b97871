"""Findings of `millrace check` (one sentence, its severity, the remedy), and the threads in which checks run. A check that
raises an unexpected error, or does not answer, becomes a finding."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from model_ops.machine import end_process

State = Literal["ok", "warning", "problem"]
SECONDS = 40.0
"""Seconds after which a check counts as not answering."""


@dataclass(frozen=True)
class CheckFinding:
    check: str
    """A stable name of the subject, for programs."""
    state: State
    message: str
    """One sentence."""
    remedy: str = ""
    """What to do; empty where ok."""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ok(check: str, message: str) -> CheckFinding:
    return CheckFinding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> CheckFinding:
    return CheckFinding(check, "warning", message, remedy)


def problem(check: str, message: str, remedy: str) -> CheckFinding:
    return CheckFinding(check, "problem", message, remedy)


@dataclass(frozen=True)
class CheckStep:
    name: str
    """Name for a finding that the check itself failed."""
    look: Callable[[], Sequence[CheckFinding]]

    @classmethod
    def of(cls, name: str, check: Callable[..., Sequence[CheckFinding]], *given: Any) -> CheckStep:
        """A step that calls a check with what is given."""
        return cls(name, lambda: check(*given))


_unanswered: list[threading.Thread] = []
"""Checks that got no answer in time and may still be waiting."""


def run_checks(
    checks: Sequence[CheckStep], seconds: float = SECONDS, tell: Callable[[str], None] = lambda name: None
) -> list[CheckFinding]:
    """The findings of all checks, in their order. They run in parallel, and have `seconds` together."""
    return start_checks(checks)(seconds, tell)


def start_checks(checks: Sequence[CheckStep]) -> Callable[[float, Callable[[str], None]], list[CheckFinding]]:
    """Starts checks, and returns what waits for their findings."""
    results: dict[int, list[CheckFinding]] = {}

    def look(place: int, check: CheckStep) -> None:
        try:
            results[place] = list(check.look())
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            message = f"could not be checked: {type(error).__name__}{': ' if said else ''}{said}"
            words = "look at it by hand; if it is right, this is a defect of millrace check"
            results[place] = [warning(check.name, message, words)]

    threads = [
        threading.Thread(target=look, args=(place, check), daemon=True, name=check.name) for place, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()

    def wait(seconds: float, tell: Callable[[str], None]) -> list[CheckFinding]:
        until = time.monotonic() + seconds
        for place, (thread, check) in enumerate(zip(threads, checks, strict=True)):
            tell(check.name)
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                _unanswered.append(thread)
                late = f"could not be checked: no answer within {seconds:g} s"
                results[place] = [warning(check.name, late, "check that this machine can reach it")]
        return [finding for place in range(len(checks)) for finding in results[place]]

    return wait


def leave(code: int) -> NoReturn:
    """Ends the process. One in which a check still waits for a server ends at once, without waiting for it too."""
    if any(thread.is_alive() for thread in _unanswered):
        end_process(code, waits=False)
    sys.exit(code)
