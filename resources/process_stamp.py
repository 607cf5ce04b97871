"""Identifies a process by `pid@start time`, which differs from a later process with the same pid.

    stamp = this_process()              # "4711@1764712345.67"
    is_same_process(stamp)              # whether it still runs
"""

from __future__ import annotations

import os

import psutil


def this_process() -> str:
    """The stamp of this process."""
    return f"{os.getpid()}@{psutil.Process().create_time():.2f}"


def stamp_of(pid: int) -> str:
    """The stamp of another process; "" if it has ended."""
    try:
        return f"{pid}@{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


def has_run_since(pid: int, at: float) -> bool:
    """Whether a process that ran at this time (seconds since 1970) still runs. A zombie is not running."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= at + 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_same_process(stamp: str) -> bool:
    """Whether the process of a stamp is running. A zombie is not running."""
    pid, _, started = stamp.partition("@")
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False
