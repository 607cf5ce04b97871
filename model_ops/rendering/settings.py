"""Settings of rendering, stored beside a dataset's rows so that every stage renders them alike. Imports no torch.

RenderingSettings(thinking="strip").write(dataset)          # dataset/rendering.json
RenderingSettings.read(dataset)                             # the defaults if there is no such file
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

from model_ops.files import write_text
from model_ops.jobs import ModelError, Settings

FILE = "rendering.json"


class RenderingSettings(Settings):
    """How answers become tokens to learn."""

    thinking: Literal["keep", "strip", "empty"] = Field(
        "keep",
        description="Reasoning before an answer. keep: learnt where the row has it; an answer without it is learnt as "
        "the chat template writes one. strip: no reasoning is learnt. empty: as keep, and an answer without reasoning is "
        "learnt with an empty block of reasoning before it, if the template has such a block",
    )
    most_unrenderable: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Largest share of rows that the chat template may refuse. Such rows are left out and "
        "counted by reason; a stage with a larger share of them stops",
    )

    @classmethod
    def read(cls, dataset: Path) -> Self:
        """The settings of a dataset. Raises ModelError if the file is damaged."""
        path = Path(dataset) / FILE
        try:
            return cls.model_validate_json(path.read_text())
        except FileNotFoundError:
            return cls()
        except (ValidationError, UnicodeDecodeError) as error:
            raise ModelError(f"{path} does not hold the settings of rendering; build the dataset again") from error

    def write(self, dataset: Path) -> None:
        """Writes the settings beside the dataset's rows."""
        write_text(Path(dataset) / FILE, self.model_dump_json(indent=2) + "\n")
