"""P-EAGLE: EAGLE-3's layers, with all drafts from one pass over mask entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, SpeculatorsLayout
from model_ops.speculators.eagle3.architecture import check_layers
from model_ops.speculators.eagle3.config import mask_token, speculators_name
from model_ops.speculators.eagle3.verification import verify_eagle3, verify_eagle3_in_speculators_layout
from model_ops.speculators.serving import VllmOptions
from model_ops.speculators.settings import SpeculatorSettings

if TYPE_CHECKING:
    from torch import Tensor

    from model_ops.decoding import Runner
    from model_ops.speculators.draft_model import DraftModel
    from model_ops.speculators.states.hidden_states import AnswerRow


class PEagleSettings(SpeculatorSettings):
    """P-EAGLE (arXiv 2602.01469)."""

    architecture: Literal["p_eagle"] = Field(description="Kind of drafter")
    num_layers: int | None = Field(None, ge=1, le=16, description="Decoder layers of the drafter. Left out: 4")
    cod_ratio: float | None = Field(
        None, gt=0, le=1, description="Training keeps cod_ratio ** k of the positions of draft k. Left out: 0.7"
    )
    cod_floor: float | None = Field(None, gt=0, le=1, description="Smallest share of positions that is kept. Left out: 0.2")
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="Token id that stands for a token not yet drafted; its embedding is trained. Left out: an id "
        "that answers and prompts do not hold",
    )

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "num_layers": 4, "cod_ratio": 0.7, "cod_floor": 0.2}
    STAY_OPEN: ClassVar[dict[str, str]] = {**SpeculatorSettings.STAY_OPEN, "mask_token_id": "by the answers"}
    PART_OF_THE_VOCABULARY: ClassVar[bool] = True

    @property
    def drafts_at_once(self) -> int:
        return self.num_speculative_tokens

    def shares_of_steps(self, steps: int) -> list[float]:
        return [1.0, *(max(self.cod_ratio**step, self.cod_floor) for step in range(1, steps))]


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.p_eagle.network import PEagle

    return PEagle


def _build(settings: PEagleSettings, target: Runner, target_ids: Tensor) -> DraftModel:
    from model_ops.speculators.p_eagle.network import PEagle

    return PEagle.for_target(target, target_ids, settings.num_layers, settings.num_speculative_tokens, settings.mask_token_id)


def _with_mask_token(
    settings: PEagleSettings, answers: Sequence[AnswerRow], vocab: int, ends: Collection[int]
) -> PEagleSettings:
    from model_ops.speculators.states.draft_vocabulary import unused_token

    return settings.model_copy(update={"mask_token_id": unused_token(answers, vocab, ends, settings.mask_token_id)})


P_EAGLE = Architecture(
    name="p_eagle",
    settings=PEagleSettings,
    build=_build,
    model_class=_model_class,
    verify=verify_eagle3,
    recognises=lambda config: config.get("architectures") == ["LlamaForCausalLMEagle3"] and mask_token(config) is not None,
    speculators_layout=SpeculatorsLayout("peagle", verify_eagle3_in_speculators_layout, speculators_name),
    check_target=check_layers,
    fill_from_answers=_with_mask_token,
    vllm=VllmOptions("eagle3", {"parallel_drafting": True, **SAMPLED_DRAFTS}),
)
