"""reward.json in a reward model's directory: calibration of its scores, and whether it may grade. Imports no torch.

record = RewardRecord.read(directory)         # ModelError if the directory holds none
record.standard(1.3), record.probability(1.3, 0.2)"""

import math
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError

from model_ops.files import write_text
from model_ops.jobs import ModelError

RECORD = "reward.json"


class RewardRecord(BaseModel):
    """What was measured of a reward model on held-out pairs."""

    temperature: float = Field(gt=0)
    """Differences of scores are divided by it where they become probabilities."""
    mean: float
    """Mean and standard deviation of the scores of held-out answers, for z-scores."""
    deviation: float = Field(gt=0)
    may_grade: bool
    missed: list[str] = []
    """A sentence for each bound of the gate that does not hold."""
    held_out: dict[str, Any] = {}
    """The report of model_ops.evaluation.scored_pairs."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """The record of a directory. Raises ModelError if it is missing or damaged."""
        try:
            return cls.model_validate_json((Path(directory) / RECORD).read_text())
        except FileNotFoundError as error:
            raise ModelError(
                f"{directory} holds no {RECORD}, so it is no reward model; give one that stage reward_model made"
            ) from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise ModelError(f"{Path(directory) / RECORD} is damaged; train the reward model again") from error

    def write(self, directory: Path) -> None:
        write_text(directory / RECORD, self.model_dump_json(indent=2) + "\n")

    def refuse_to_grade(self, directory: Path) -> None:
        """Raises ModelError if the gate does not hold."""
        if not self.may_grade:
            raise ModelError(
                f"reward model {directory} may not grade: {'; '.join(self.missed)}. Train it on more or cleaner pairs, "
                "or lower reward_model.gate"
            )

    def standard(self, score: float) -> float:
        """The score in standard deviations from the mean of held-out answers."""
        return (score - self.mean) / self.deviation

    def probability(self, one: float, other: float) -> float:
        """Calibrated probability that the answer with score `one` is the better one."""
        return 0.5 * (1 + math.tanh((one - other) / self.temperature / 2))
