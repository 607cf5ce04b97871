"""The policy lineage: which model each enabled stage starts from, and which one is served.

A stage that a recipe switches off is not in that recipe's graph; the stages after it start from the one before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelPolicy:
    """Which optional model stages a recipe has."""

    student: bool = True
    quantized: bool = True
    speculator: bool = True
    student_drafts: bool = False
    """The student is no stage on the way to the served model: it is the drafter of its teacher."""
    base_drafts: bool = False
    """The drafter begins from a layer that the base model carries."""

    @property
    def stages(self) -> list[str]:
        """The enabled stages from base to served, in the order in which each starts from the one before."""
        optional = [("student_model", self.student and not self.student_drafts), ("quantized_model", self.quantized)]
        return ["base_model", "sft_model", *(name for name, enabled in optional if enabled)]

    @property
    def disabled(self) -> list[str]:
        """Assets that are not in this recipe's graph."""
        kept = [*self.stages, *(["student_model"] if self.student_drafts else [])]
        found = [name for name in ("student_model", "quantized_model") if name not in kept]
        return found + ([] if self.speculator else ["served_answers", "speculator_dataset", "speculator"])

    def source_of(self, stage: str) -> str:
        """The model that `stage` starts from."""
        return self.stages[self.stages.index(stage) - 1]

    @property
    def served(self) -> str:
        """The model whose weights go to the endpoint: the drafter's target."""
        return self.stages[-1]

    @property
    def reference(self) -> str:
        """The model that the served one is compared with for recovery: itself before quantization."""
        return self.source_of("quantized_model") if self.quantized else self.served

    def read_by(self, asset: str, model: str) -> str | None:
        """The model that `asset` reads where the graph of all stages has it read `model`; None where it reads none."""
        if model == "student_model" and asset == "speculator":
            return model if self.student_drafts else None
        if model == "base_model" and asset == "speculator":
            return model if self.base_drafts else None
        if asset == "quantized_model" and asset in self.stages:
            return self.source_of(asset)
        return self.stand_in(model) if model in self.disabled else model

    def stand_in(self, asset: str) -> str:
        """What stands in for a disabled model in the dependencies of others: the nearest enabled stage before it."""
        order = ["base_model", "sft_model", "student_model", "quantized_model"]
        before = [name for name in order[: order.index(asset)] if name in self.stages]
        return before[-1]
