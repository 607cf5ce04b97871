"""The contract of a worker: the job with its settings, progress as JSON lines, errors that a user can fix (one sentence that
names the problem and the remedy; every other exception is a bug), and numbers in sentences. It imports nothing of the
project."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.jobs.errors import CheckFailed, Misuse, ModelError, UserError
    from model_ops.jobs.job import Job, Progress, Seed, Settings, Stopped, filled
    from model_ops.jobs.wording import counted, duration, plural, singular, size

__getattr__, __dir__, __all__ = door(__name__, __file__)
