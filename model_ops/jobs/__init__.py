"""The contract of a worker: the job with its settings, progress as JSON lines, errors that a user can fix, and numbers in
sentences.

Everything in the project may import this room; it imports nothing of the project. Start with `job.py`; `python -m
model_ops.worker JOB.json` runs one. An error for a user is a `UserError` with one sentence that names the problem and the
remedy; every other exception is a bug.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.jobs.errors import CheckFailed, Misuse, ModelError, UserError
    from model_ops.jobs.job import Job, Seed, Settings, filled
    from model_ops.jobs.progress import Progress, Stopped
    from model_ops.jobs.wording import counted, duration, plural, singular, size

__getattr__, __dir__, __all__ = door(__name__, __file__)
