"""MTP: the multi-token-prediction layer that the base model was published with, trained further."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from model_ops.families import BODY_TYPES, has_layers, takes_layer_for_quantized
from model_ops.files import LocalPath
from model_ops.jobs import ModelError
from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, StartingModel
from model_ops.speculators.mtp.verification import is_mtp, verify_mtp
from model_ops.speculators.serving import VllmOptions
from model_ops.speculators.settings import TrainedDrafterSettings

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


class MtpSettings(TrainedDrafterSettings):
    """The multi-token-prediction layer of MiMo (arXiv 2505.07608), trained further (FastMTP, arXiv 2509.18362)."""

    architecture: Literal["mtp"] = Field(description="Kind of drafter")
    mtp_layer: (
        Annotated[
            str, LocalPath("folder", "the directory of a model with a multi-token-prediction layer, or `base`", ("base",))
        ]
        | None
    ) = Field(
        None,
        min_length=1,
        description="Model whose multi-token-prediction layer is trained further: `base` (the "
        "recipe's base model), or a directory. Left out: base",
    )

    COMMON: ClassVar[dict[str, Any]] = {**TrainedDrafterSettings.COMMON, "mtp_layer": "base"}


def _check_target(target: Path, config: Config) -> None:
    """Refuses a target with which vLLM cannot run the layer."""
    if config["model_type"] not in BODY_TYPES:
        raise ModelError(
            f"{target} is a {config['model_type']}; architecture mtp supports only {', '.join(BODY_TYPES)}, the "
            "body of MiMo: choose eagle3"
        )
    if takes_layer_for_quantized(config):
        raise ModelError(
            f"{target} is quantized, and its config.json does not exclude the multi-token-prediction layer, which "
            "vLLM would then read as int8; quantize the model again with mtp_layer: true"
        )


def _check_layer(directory: Path, target: Path) -> None:
    """Refuses a directory without a multi-token-prediction layer."""
    from model_ops.speculators.mtp.network import read_layer

    read_layer(directory)


def _lacking_in(config: Config) -> str:
    if has_layers(config):
        return ""
    return (
        f"trains a layer of the base model, and a {config.get('model_type')} carries none that is known (bodies known: "
        f"{', '.join(BODY_TYPES)})"
    )


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.mtp.network import Mtp

    return Mtp


MTP = Architecture(
    name="mtp",
    settings=MtpSettings,
    model_class=_model_class,
    verify=verify_mtp,
    recognises=is_mtp,
    check_target=_check_target,
    unquantized_layer=True,
    refuses_tiny_base="which trains the base model's own multi-token-prediction layer, and base_model tiny has none; take "
    "eagle3, or a base that has such a layer",
    starts_from=StartingModel("mtp_layer", "base", "a model with a multi-token-prediction layer", _check_layer, _lacking_in),
    # vLLM reads the number of such layers from the target's config, which has none
    vllm=VllmOptions("mtp", SAMPLED_DRAFTS, hf_overrides={"num_nextn_predict_layers": 1}),
)
