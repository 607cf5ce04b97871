"""Writes metrics.jsonl: one JSON line per optimizer step, in the directory of the weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

from model_ops.atomic_files import renamed_when_complete


class MetricsLog:
    """metrics.jsonl with each step of a phase once, also if the run was killed and continued."""

    def __init__(self, path: Path | None, phase: str, first: int):
        """path: None writes nothing, for processes other than the first. first: step from which the run continues."""
        self.path, self.phase = path, phase
        if path is None:
            return
        kept = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # a line that was cut short when the run was killed
                    continue
                if record["phase"] != phase or record["step"] <= first:
                    kept.append(line)
        with renamed_when_complete(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept))

    def losses(self) -> list[float]:
        """The losses of all steps of the phase that were not skipped, including steps before the run was continued."""
        if self.path is None or not self.path.exists():
            return []
        records = (json.loads(line) for line in self.path.read_text().splitlines())
        return [record["loss"] for record in records
                if record["phase"] == self.phase and "skipped" not in record and record.get("loss") is not None]

    def write(self, record: dict[str, float | str]) -> None:
        """Appends a step's line. Numbers that are not finite become null, because JSON has none."""
        if self.path is None:
            return
        record = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                  for key, value in record.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
