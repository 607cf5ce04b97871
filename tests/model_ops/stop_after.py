"""A run that is asked to stop, at a step of the test's choice."""

from model_ops.jobs import Progress


class StopAfter(Progress):
    """Asks for a stop once `step` steps are reported, of one phase or of any."""

    def __init__(self, step: int, phase: str | None = None):
        super().__init__()
        self.step, self.phase = step, phase

    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = done == self.step and self.phase in (phase, None)
