"""Settings of operation `distill`, and the number of a student's layers. Importing this file imports no torch."""

from __future__ import annotations

from pydantic import Field, model_validator

from model_ops.training.settings import TrainingSettings


class StudentSettings(TrainingSettings):
    """A shallower student, started from evenly spaced layers of its teacher and distilled from it."""

    enabled: bool = Field(True, description="false: no student is made, and the next stage starts from the fine-tuned model")
    layers: float = Field(
        0.7, gt=0, le=1_024, description="Below 1: share of the teacher's layers to keep. From 1: number of layers to keep, "
        "at most the teacher's")
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature of both distributions in the divergence")
    label_weight: float = Field(
        0.0, ge=0, le=1, description="Share of plain cross-entropy in the loss; 1 is supervised fine-tuning")

    @model_validator(mode="after")
    def _whole_layers(self):
        if self.layers >= 1 and self.layers != int(self.layers):
            raise ValueError(f"layers is {self.layers:g}; it must be a share below 1 or a whole number of layers")
        return self

    def depth(self, teacher_layers: int) -> int:
        """Number of layers of the student. Raises ValueError, with the remedy after a semicolon, if the teacher has fewer."""
        count = max(1, round(teacher_layers * self.layers)) if self.layers < 1 else int(self.layers)
        if count > teacher_layers:
            raise ValueError(f"the student cannot keep {count} layers, its teacher has {teacher_layers}; set student.layers to "
                             f"at most {teacher_layers}, or to a share below 1")
        return count
