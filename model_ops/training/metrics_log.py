"""metrics.jsonl: one JSON line per optimizer step, beside the weights it led to."""

from __future__ import annotations

import json
import math
from pathlib import Path

from model_ops.atomic_files import renamed_when_complete


class MetricsLog:
    """metrics.jsonl: each step of a phase once, however often the run was killed."""

    def __init__(self, path: Path | None, phase: str, first: int):
        """`path` None: nowhere, for processes that do not lead."""
        self.path, self.phase = path, phase
        if path is None:
            return
        kept = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # the line a kill cut short
                    continue
                if record["phase"] != phase or record["step"] <= first:
                    kept.append(line)
        with renamed_when_complete(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept))

    def losses(self) -> list[float]:
        """The loss of every step of the phase that was taken, this process's and those of runs before it."""
        if self.path is None or not self.path.exists():
            return []
        records = (json.loads(line) for line in self.path.read_text().splitlines())
        return [record["loss"] for record in records
                if record["phase"] == self.phase and "skipped" not in record and record.get("loss") is not None]

    def write(self, record: dict[str, float | str]) -> None:
        """Adds a step's line; a number that is not finite is null, as JSON knows none."""
        if self.path is None:
            return
        record = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                  for key, value in record.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
