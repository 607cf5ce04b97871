"""Error messages for a process that was killed by a signal, with the memory that was in use."""

from pathlib import Path

import psutil

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def killed_sentence(who: str, signal_name: str) -> str:
    """A sentence: a process was killed, the usual reason, and what to do."""
    reason = ", as the system does when memory runs out" if signal_name == "SIGKILL" else ""
    return f"{who} was killed ({signal_name}) before its job was done{reason}; checkpoints are kept, run again to continue"


def memory_sentence(peak_mb: float | None) -> str:
    """The peak memory and the limit, as text; empty without a measurement. peak_mb: in MiB."""
    return f" ({peak_mb / 1024:.1f} of {memory_limit() / 2**30:.1f} GiB memory were in use)" if peak_mb else ""


def memory_limit() -> int:
    """Bytes of memory that processes here may use: the container's limit, else the machine's memory."""
    machine = psutil.virtual_memory().total
    for file in CGROUP_LIMITS:
        try:
            return min(machine, int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return machine
