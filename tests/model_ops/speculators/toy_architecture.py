"""A drafter architecture in one file, for the test that adds it: EAGLE-3 under another name.

The test copies the project, puts this file into model_ops/speculators/architectures/ and adds one line for it.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators import SpeculatorSettings, VllmOptions
from model_ops.speculators.architecture import Architecture
from model_ops.speculators.eagle3.architecture import verify_eagle3


class ToySettings(SpeculatorSettings):
    """Layers that are called toy."""

    architecture: Literal["toy"] = Field(description="Kind of drafter")
    toy_layers: int | None = Field(None, ge=1, le=4, description="Decoder layers. Left out: 2")

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "toy_layers": 2}


def _model_class():
    from model_ops.speculators.decoder_config import Eagle3Config
    from model_ops.speculators.draft_model import in_dtype, write_directory
    from model_ops.speculators.eagle3.network import Eagle3, midlayer_config

    class Toy(Eagle3):
        """EAGLE-3, with `toy` written into config.json."""

        @classmethod
        def new(cls, settings, target, target_ids):
            config = Eagle3Config.for_target(target.config, len(target_ids), num_layers=settings.toy_layers)
            return cls(config).to(target.device).begun_from(target, target_ids)

        def write(self, directory, options):
            config = {**midlayer_config(self.config, options.dtype), "architectures": ["ToyModel"]}
            write_directory(directory, in_dtype(self.state_dict(), options.dtype), config)

    return Toy


TOY = Architecture(
    name="toy",
    settings=ToySettings,
    model_class=_model_class,
    verify=verify_eagle3,
    recognises=lambda config: config.get("architectures") == ["ToyModel"],
    vllm=VllmOptions("toy_method"),
)
