"""A drafter architecture in one file, for the test that adds it: MEDUSA's heads under another name.

The test copies the project, puts this file into model_ops/speculators/architectures/ and adds one line for it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import Architecture
from model_ops.speculators.medusa.verification import verify_medusa
from model_ops.speculators.serving import VllmOptions
from model_ops.speculators.settings import SpeculatorSettings


class ToySettings(SpeculatorSettings):
    """Heads that are called toy."""

    architecture: Literal["toy"] = Field(description="Kind of drafter")
    toy_layers: int | None = Field(None, ge=1, le=4, description="Residual layers of each head. Left out: 2")

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "toy_layers": 2}

    @property
    def drafts_at_once(self) -> int:
        return self.num_speculative_tokens


def _model_class():
    from model_ops.speculators.draft_model_files import in_dtype, write_directory
    from model_ops.speculators.medusa.network import Medusa, medusa_config

    class Toy(Medusa):
        """Medusa, with `toy` written into config.json."""

        def save(self, directory, num_speculative_tokens, dtype=None, verifier="target", verifier_architectures=None):
            config = {**medusa_config(self.config, dtype), "architectures": ["ToyModel"], "model_type": "toy"}
            write_directory(directory, in_dtype(self.state_dict(), dtype), config)

    return Toy


def _build(settings, target, target_ids):
    return _model_class().for_target(
        target, target_ids, num_heads=settings.num_speculative_tokens, residual_layers=settings.toy_layers
    )


TOY = Architecture(
    name="toy",
    settings=ToySettings,
    build=_build,
    model_class=_model_class,
    verify=verify_medusa,
    recognises=lambda config: config.get("model_type") == "toy",
    vllm=VllmOptions("toy_method"),
)
