"""Settings of operation `rescore`. Importing this file imports no torch."""

from pydantic import Field

from model_ops.graders import GraderSettings
from model_ops.jobs import Settings


class RescoreSettings(Settings):
    """Grades kept answers of a reinforcement fine-tuning again."""

    grader: GraderSettings = Field(description="Who grades now")
