"""A job for a worker (operation, input directories, output directory, settings), and the base class of all settings models.

    Job(operation="sft", output=folder, inputs={"model": base, "dataset": rows}, settings={"steps": 3})

A job is a JSON file: assets write it, `python -m model_ops.worker JOB.json` runs it. Importing this file imports no torch
and no operation, because the code digest of an operation must not cover the settings of the others.
"""

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from model_ops.jobs.errors import ModelError

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Settings that a person writes: unknown keys are refused and values are checked when they are read."""

    model_config = ConfigDict(extra="forbid")

    def resolved(self) -> Self:
        """The settings with every missing value filled in. Settings with presets override it; here nothing is missing."""
        return self


Kind = TypeVar("Kind", bound=Settings)
Value = TypeVar("Value")


def filled(value: Value | None) -> Value:
    """A value of resolved settings. Raises ValueError where the settings are not resolved."""
    if value is None:
        raise ValueError("a value of these settings is not filled in: call resolved() first")
    return value


class Job(BaseModel):
    """One operation for one worker.

    inputs name directories: models (`model`, `teacher`, `target`, `base`, ...) in the Hugging Face layout and
    datasets of Parquet files. `output` is a directory that may hold the unfinished work of a killed worker: the
    operation continues it. `output/.work` is scratch (checkpoints, caches) and is removed once the artefact exists.
    """

    model_config = ConfigDict(extra="forbid")

    operation: str = Field(description="a name in model_ops.operations.table")
    output: Path
    inputs: dict[str, Path] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    threads: int = Field(2, ge=1, description="CPU threads for torch")

    def settings_as(self, kind: type[Kind]) -> Kind:
        """The settings as an operation's own model; keys that a job by hand leaves out are filled. Raises ValidationError."""
        return TypeAdapter(kind).validate_python(self.settings).resolved()

    def input(self, name: str) -> Path:
        """The directory of an input. Raises ModelError if the job does not name it."""
        if name not in self.inputs:
            raise ModelError(f"job {self.operation} has no input {name!r}; it has {', '.join(self.inputs) or 'none'}")
        return self.inputs[name]
