"""Ends the runs that a daemon launched, before the daemon itself ends. SIGTERM lets a run's worker save a checkpoint; the next
daemon starts the run again from that step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

CHECKPOINT_S = 130.0
"""Seconds that a run has: its worker takes up to 120 to save a checkpoint (LocalLauncher)."""


def end_launched_runs(session: int, hurried: Callable[[], bool] = lambda: False, seconds: float = CHECKPOINT_S) -> int:
    """Ends the runs in a session, and waits. Returns how many there were. seconds: that they have, until `hurried`."""
    runs = [process for process in psutil.process_iter() if _is_run(process, session)]
    for run in runs:
        with suppress(psutil.Error):
            run.terminate()
    left, until = runs, time.monotonic() + seconds
    while left and time.monotonic() < until and not hurried():
        _, left = psutil.wait_procs(left, timeout=0.5)
    return len(runs)


def _is_run(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and any("spawn_main" in word for word in process.cmdline())
    except (psutil.Error, OSError):
        return False
