"""A run that is asked to stop, at a step of the test's choice."""

from __future__ import annotations

from model_ops.jobs.progress import Progress


class StopAfter(Progress):
    """Asks for a stop once `step` steps are reported."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = done == self.step
