"""A clock that the Python processes of a benchmark share and that jumps forward: a week in minutes.

    clock = SimulatedClock(folder / "clock", datetime(2026, 6, 1, tzinfo=UTC))
    subprocess.Popen(command, env=clock.environment())         # its time, and that of its Python children, is the clock's
    clock.jump_to(clock.now() + timedelta(hours=12))

Between jumps the clock runs at real speed. Moved are `time.time` and the dates of `datetime` (benchmarks/clock_hook/), not
monotonic clocks, sleeps, time-outs and the times of files. Processes of another environment, such as an inference
server's, keep the real time.
"""

import os
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

HOOK = Path(__file__).with_name("clock_hook")
PLACE = "MILLRACE_SIMULATED_CLOCK"


class SimulatedClock:
    """path: where the distance to the real time is kept. start: what the clock says now."""

    def __init__(self, path: Path, start: datetime):
        self._path = path
        self._path.touch()
        self._set(start)

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time() + self._offset(), UTC)

    def jump_to(self, moment: datetime) -> None:
        """Raises ValueError for a moment that has passed: clocks of servers do not go back."""
        if moment < self.now():
            raise ValueError(f"{moment} has passed: it is {self.now()}")
        self._set(moment)

    def environment(self) -> dict[str, str]:
        """Variables that give a child this clock."""
        given = os.environ.get("PYTHONPATH")
        return {PLACE: str(self._path), "PYTHONPATH": os.pathsep.join([str(HOOK), *([given] if given else [])])}

    def _set(self, moment: datetime) -> None:
        with self._path.open("r+b") as file:  # in place: other processes have the file mapped
            file.write(struct.pack("d", moment.timestamp() - time.time()))

    def _offset(self) -> float:
        return struct.unpack("d", self._path.read_bytes())[0]
