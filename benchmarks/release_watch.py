"""How often the watch after a promotion rolls a good release back, and how long a bad one serves, on simulated endpoints.

    python -m benchmarks.release_watch                # about 4 minutes
    python -m benchmarks.release_watch --quick        # 20 quiet watches, 2 of each fall; nothing is recorded

An endpoint has windows of 5 minutes (1,500 drafts, 60 requests) with a cycle of the day of 12 %, hours that drift together,
windows that scatter, and 40 sessions of 1 to 5 answers an hour (benchmarks/served_series.py).
The champion before has served for 7 days; the new one is watched for 24 hours, with a look every hour. Settings are the
recipe's defaults. Quiet watches are of three kinds: no change; no change, and hours that drift for half a day (autocorrelation
0.8); a fall that is tolerated (8 %). rolled_back: their share. hours: until a worse release is rolled back, the median; found:
the share of them within 24 hours.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np

from benchmarks.record import record
from benchmarks.served_series import PROMOTED, sessions, windows
from resources.monitoring.champions.served_acceptance import compare_acceptance, compare_errors, compare_sessions, from_windows
from resources.releases.settings import WatchSettings

SETTINGS = WatchSettings()
WATCHES, FALLS = 600, 20
QUIET: dict[str, dict[str, float]] = {
    "usual": {},
    "hours alike": {"together": 0.8, "hourly": 0.02},
    "tolerated fall": {"fall": 0.08},
}
WORSE: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "acceptance length -15 %": ({"fall": 0.15}, {}),
    "acceptance length -30 %": ({"fall": 0.3}, {}),
    "acceptance length -30 % after 12 h": ({"fall": 0.3, "falls_after_h": 12}, {}),
    "no draft accepted": ({"fall": 1.0}, {}),
    "requests without an answer 1 % to 10 %": ({"errors": 0.1}, {}),
    "broken answers 2 % to 10 %": ({}, {"broken": 0.1}),
    "bad feedback 2 % to 10 %": ({}, {"disliked": 0.1}),
}
"""What changes in the windows, and in the sessions."""
DAYS, HOURS = 7, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 quiet watches, 2 of each fall; nothing is recorded")
    quick = parser.parse_args().quick
    record("release_watch", measured(20 if quick else WATCHES, 2 if quick else FALLS), keep=not quick)


def measured(watches: int, falls: int) -> dict[str, Any]:
    """watches: quiet ones, of all kinds together. falls: of each kind."""
    kinds = list(QUIET)
    with ProcessPoolExecutor(2) as workers:
        quiet = list(workers.map(_quiet, range(watches), chunksize=10))
        delays = {name: list(workers.map(_worse, [name] * falls, range(falls), chunksize=5)) for name in WORSE}
    by_kind = {kind: [signal for number, signal in enumerate(quiet) if kinds[number % len(kinds)] == kind] for kind in kinds}
    found = {name: [hour for hour in hours if hour is not None] for name, hours in delays.items()}
    return {
        "stated": SETTINGS.false_alarm,
        "watches": watches,
        "rolled_back": round(sum(signal is not None for signal in quiet) / watches, 5),
        "rolled_back_by_kind": {
            kind: {"watches": len(signals), "rolled_back": sum(signal is not None for signal in signals)}
            for kind, signals in by_kind.items()
        },
        "false_signals": sorted(signal for signal in quiet if signal),
        "hours": {name: float(np.median(hours)) if hours else None for name, hours in found.items()},
        "longest_hours": {name: max(hours, default=None) for name, hours in found.items()},
        "found": {name: len(hours) / falls for name, hours in found.items()},
    }


def _quiet(number: int) -> str | None:
    """The signal that rolls a quiet release back; None if it stays."""
    rng, more = np.random.default_rng([17, number]), QUIET[list(QUIET)[number % len(QUIET)]]
    of_old = {name: value for name, value in more.items() if name != "fall"}
    outside = _outside(rng, of_old, {}, more, {})
    return outside[1] if outside else None


def _worse(name: str, number: int) -> int | None:
    """The hour of the rollback."""
    rng = np.random.default_rng([19, number])
    changes = WORSE[name]
    outside = _outside(rng, {}, {}, {"errors": 0.01, **changes[0]}, changes[1])
    return outside[0] if outside else None


def _outside(
    rng: np.random.Generator,
    old: dict[str, float],
    old_talk: dict[str, float],
    new: dict[str, float],
    new_talk: dict[str, float],
) -> tuple[int, str] | None:
    """The first hour at which a signal is outside, and the signal."""
    before = PROMOTED - timedelta(days=DAYS)
    usual = windows(rng, before, 24 * DAYS, **{"errors": 0.01, **old})
    should = from_windows(usual, "before", SETTINGS)
    if should is None:
        return None
    said = sessions(rng, before, 24 * DAYS, **old_talk)
    served, talked = windows(rng, PROMOTED, HOURS, **{"errors": 0.01, **new}), sessions(rng, PROMOTED, HOURS, **new_talk)
    for hour in range(1, HOURS + 1):
        now = PROMOTED + timedelta(hours=hour)
        seen = [window for window in served if window.end <= now]
        found = [
            compare_acceptance(seen, should, SETTINGS, PROMOTED, now),
            compare_errors(seen, usual, SETTINGS, PROMOTED, now),
            *compare_sessions([row for row in talked if row["last"] <= now], said, SETTINGS, PROMOTED),
        ]
        if outside := next((each.signal for each in found if each.is_outside), None):
            return hour, outside
    return None


if __name__ == "__main__":
    main()
