"""Hostile programs in the sandbox of model_ops/tasks: how many get out, cheat or hang; milliseconds for a harmless one.

    python -m benchmarks.sandbox             # --quick is the same

Each program (hostile_programs.py) is an answer whose `solve` returns evidence of an escape: True, or a secret that this
process alone knows (in a file, its environment, the tests). Servers on TCP, UDP and unix sockets, files, signals and
processes are watched from outside, too. A cheat has not solved its task, so passing is an escape. A program hangs if its
verdict comes late or if it leaves a process.
"""

import argparse
import contextlib
import os
import platform
import secrets
import selectors
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.hostile_programs import CHEATS, EVIDENCE, PRELUDE, test_of
from benchmarks.record import record
from model_ops.tasks import isolation
from model_ops.tasks.unit_tests import run_tests

SECONDS, LATE_SECONDS, MEMORY_MB = 1.0, 4.0, 256
HARMLESS = 50
USERFAULTFD, MEMFD, PROCESS_VM = (323, 319, 310) if platform.machine() == "x86_64" else (282, 279, 270)


class Outside:
    """What programs should not reach, watched. facts: where it is, for the programs."""

    def __init__(self, folder: Path):
        self.secret, self.folder, self.signals = secrets.token_hex(16), folder, 0
        folder.chmod(0o755)
        self.file = folder / "secret"
        self.file.write_text(self.secret)
        self.file.chmod(0o644)
        self.sockets = selectors.DefaultSelector()
        abstract = secrets.token_hex(8)
        tcp, udp, udp6, stream, datagrams, hidden = (
            socket.socket(socket.AF_INET),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        )
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError):  # a machine without IPv6
            udp6.bind(("::1", udp.getsockname()[1]))
        for each, place in ((stream, str(folder / "socket")), (datagrams, str(folder / "datagrams"))):
            each.bind(place)
            Path(place).chmod(0o777)
        hidden.bind(f"\0millrace-{abstract}")
        for each in (tcp, stream):
            each.listen()
        for each in (tcp, udp, udp6, stream, datagrams, hidden):
            each.setblocking(False)
            self.sockets.register(each, selectors.EVENT_READ)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGIO):
            signal.signal(number, self._signalled)
        os.environ["MILLRACE_SANDBOX_SECRET"] = self.secret
        self.before = self._files()
        self.facts = {
            "outside": folder, "repository": Path(__file__).resolve().parents[1], "parent": os.getpid(), "abstract": abstract,
            "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1], "packages": Path(psutil.__file__).parents[1],
            "userfaultfd": USERFAULTFD, "memfd": MEMFD, "process_vm": PROCESS_VM, "clone": 56 if USERFAULTFD == 323 else 220,
        }  # fmt: skip

    def _signalled(self, *_: object) -> None:
        self.signals += 1

    def _files(self) -> list[tuple]:
        places = [self.file, *self.folder.iterdir(), Path("/tmp/millrace-escaped"), Path("/dev/shm/millrace-escaped")]
        places.append(Path(__file__).resolve().parents[1] / "escaped")
        found = [(str(each), each.lstat()) for each in sorted(set(places)) if each.exists()]
        return [
            (name, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_nlink) for name, status in found
        ]

    def touched(self) -> list[str]:
        """What has changed or was reached since the last call."""
        reached = [str(key.fileobj.getsockname()) for key, _ in self.sockets.select(0)]
        changed = ["a file"] if self._files() != self.before else []
        signalled, self.signals = ["a signal"] * self.signals, 0
        return reached + changed + signalled


def left_processes() -> Iterator[psutil.Process]:
    """Processes of ended jobs."""
    for server in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from (each for each in server.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE)


def attempt(name: str, source: str, outside: Outside) -> dict[str, object]:
    """What came of one program."""
    began = time.monotonic()
    test = test_of(name).format(secret=outside.secret)
    outcome = run_tests(PRELUDE + source.format(**outside.facts), test, seconds=SECONDS, memory_mb=MEMORY_MB)
    took = time.monotonic() - began
    until = time.monotonic() + 1
    while (left := list(left_processes())) and time.monotonic() < until:
        time.sleep(0.01)
    return {
        "escaped": outcome.passed or bool(outside.touched()),
        "hung": took > SECONDS + LATE_SECONDS or bool(left),
        "seconds": took,
    }


def harmless_ms() -> float:
    """Median milliseconds of one harmless program with its tests."""
    times = []
    for _ in range(HARMLESS):
        began = time.perf_counter()
        assert run_tests("def double(x): return 2 * x", "assert double(2) == 4", seconds=10, memory_mb=MEMORY_MB).passed
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same: it takes less than a minute")
    parser.parse_args()
    layers, found = isolation(), {}
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:
        outside = Outside(Path(folder))
        for name, source in {**EVIDENCE, **CHEATS}.items():
            found[name] = attempt(name, source, outside)
            if found[name]["escaped"] or found[name]["hung"]:
                print(name, found[name])
    figures = {
        "attempts": len(found),
        "escaped": sum(bool(each["escaped"]) for each in found.values()),
        "hung": sum(bool(each["hung"]) for each in found.values()),
        "slowest_seconds": round(max(each["seconds"] for each in found.values()), 2),
        "ms_per_program": round(harmless_ms(), 1),
        "isolation": layers,
    }
    record("sandbox", figures)


if __name__ == "__main__":
    main()
