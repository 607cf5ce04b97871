"""EAGLE-3 and EAGLE-3.1: a decoder layer that reads three hidden states of the target and is run again for each draft."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, SpeculatorsLayout
from model_ops.speculators.eagle3.config import default_layer_ids, speculators_name
from model_ops.speculators.eagle3.verification import verify_eagle3, verify_eagle3_in_speculators_layout
from model_ops.speculators.serving import SglangOptions, VllmOptions
from model_ops.speculators.settings import SpeculatorSettings

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


class Eagle3Settings(SpeculatorSettings):
    """EAGLE-3 (arXiv 2503.01840)."""

    architecture: Literal["eagle3"] = Field("eagle3", description="Kind of drafter")
    num_layers: int | None = Field(None, ge=1, le=16, description="Decoder layers of the drafter. Left out: 1")

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "num_layers": 1, "adamw_rate_share": 0.1}
    PART_OF_THE_VOCABULARY: ClassVar[bool] = True


class Eagle31Settings(Eagle3Settings):
    """EAGLE-3.1: EAGLE-3 with its inputs and its output normalised."""

    architecture: Literal["eagle3.1"] = Field(description="Kind of drafter")


def _check_layers(target: Path, config: Config) -> None:
    """Refuses a target with too few layers for three boundaries."""
    default_layer_ids(config.get("num_hidden_layers") or 0)


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.eagle3.network import Eagle3

    return Eagle3


def _is_eagle3(config: Config, newer: bool) -> bool:
    normalised = bool(config.get("fc_norm") or config.get("norm_output"))
    return config.get("architectures") == ["LlamaForCausalLMEagle3"] and normalised == newer


def _described(name: str, settings: type[Eagle3Settings]) -> Architecture:
    return Architecture(
        name=name,
        settings=settings,
        model_class=_model_class,
        verify=verify_eagle3,
        recognises=lambda config: _is_eagle3(config, newer=issubclass(settings, Eagle31Settings)),
        speculators_layout=SpeculatorsLayout("eagle3", verify_eagle3_in_speculators_layout, speculators_name),
        check_target=_check_layers,
        vllm=VllmOptions("eagle3", SAMPLED_DRAFTS),
        sglang=SglangOptions("EAGLE3"),
    )


EAGLE3 = _described("eagle3", Eagle3Settings)
EAGLE3_1 = _described("eagle3.1", Eagle31Settings)
