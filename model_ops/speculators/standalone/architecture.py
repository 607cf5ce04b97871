"""A small language model as the drafter: the recipe's student, or any model with the target's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from model_ops.families import FAMILIES
from model_ops.files import LocalPath
from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, StartingModel
from model_ops.speculators.serving import SglangOptions, VllmOptions
from model_ops.speculators.settings import TrainedDrafterSettings
from model_ops.speculators.verify_layers import WEIGHTS, verify_same_vocabulary

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


class DraftModelSettings(TrainedDrafterSettings):
    """A small language model with the target's tokenizer, trained for acceptance (DistillSpec, arXiv 2310.08461)."""

    architecture: Literal["draft_model"] = Field(description="Kind of drafter")
    draft_model: (
        Annotated[str, LocalPath("folder", "the directory of a small language model, or `student`", ("student",))] | None
    ) = Field(
        None,
        min_length=1,
        description="Small language model to begin from, with the target's tokenizer: "
        "`student` (the recipe's), or a directory. Left out: student",
    )

    COMMON: ClassVar[dict[str, Any]] = {**TrainedDrafterSettings.COMMON, "draft_model": "student"}

    def derived(self) -> dict[str, Any]:
        return {"ttt_steps": 1}

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if not self.mesh.alone:
            yield "a draft_model is trained in one process: leave mesh out"
        if self.ttt_steps not in (None, 1):
            yield (
                f"ttt_steps is {self.ttt_steps}, but a draft_model reads tokens alone: a later draft is trained "
                "as the first one of a longer text. Leave ttt_steps out"
            )


def _is_drafting_language_model(config: Config) -> bool:
    """Whether a config.json is of a language model that names the target it was trained for."""
    return (
        WEIGHTS in config
        and config.get("model_type") in FAMILIES
        and all(name.endswith("ForCausalLM") for name in config.get("architectures") or [""])
    )


def _check_start(directory: Path, target: Path) -> None:
    from model_ops.speculators.standalone.network import check_draft_model

    check_draft_model(directory, target)


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.standalone.network import StandaloneModel

    return StandaloneModel


DRAFT_MODEL = Architecture(
    name="draft_model",
    settings=DraftModelSettings,
    model_class=_model_class,
    recognises=_is_drafting_language_model,
    verify=verify_same_vocabulary,
    is_language_model=True,
    starts_from=StartingModel("draft_model", "student", "a small language model", _check_start),
    vllm=VllmOptions("draft_model", SAMPLED_DRAFTS),
    sglang=SglangOptions("STANDALONE"),
    serving_note="draft_model is a language model of its own, served next to its target with its own keys and values: vLLM's "
    "method draft_model, SGLang's STANDALONE (the release's scripts say so).",
    untrained_note="draft_model_untrained is the student as it was distilled, before it learnt this target's answers.",
)
