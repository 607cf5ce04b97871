"""Description of a kind of drafter: name, settings, network, checks, and the servers that run it. Recipes are checked with
these, so importing one must not import torch: `model_class` and `check_target` import what they need when they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_ops.files import TensorHeader
from model_ops.models import Defect
from model_ops.speculators.serving import DrafterServing, SglangOptions, VllmOptions
from model_ops.speculators.settings import SpeculatorSettings

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel

Config = Mapping[str, Any]
"""The content of a config.json."""

Verify = Callable[[Config, Mapping[str, TensorHeader], Config | None], list[Defect]]
"""(the drafter's config, its tensors, the target's config if known) -> what is wrong, one sentence each."""


@dataclass(frozen=True)
class SpeculatorsLayout:
    """The second directory that a drafter is saved in, for `vllm serve DIRECTORY` alone (the speculators layout)."""

    model_type: str
    """Value of speculators_model_type."""
    verify: Verify
    renamed: Callable[[str], str] = str
    """Tensor name in this layout, from its name in the first directory."""


@dataclass(frozen=True)
class StartingModel:
    """A model, besides the target, that a drafter of this architecture begins from."""

    key: str
    """Recipe key that names it, and the job's input."""
    word: str
    """The value of the key that means a model of the recipe; that model's role in `resources/stages/table.py`."""
    what: str
    """Noun phrase for messages."""
    check: Callable[[Path, Path], None]
    """Refuses a directory (model, target) with a ModelError."""
    lacking_in: Callable[[Config], str] = lambda config: ""
    """What a model of this config lacks, as the end of a sentence that begins with the architecture; "" if nothing."""

    def named_in(self, settings: SpeculatorSettings) -> str:
        """What settings name: the word for a model of the recipe, or a directory."""
        return getattr(settings.resolved(), self.key)


def _fits_any(target: Path, config: Config) -> None:
    """Requires nothing of the target."""


@dataclass(frozen=True)
class Architecture:
    """One kind of drafter."""

    name: str
    """Name in recipes and reports."""
    settings: type[SpeculatorSettings]
    """The recipe's `speculator` section for it."""
    model_class: Callable[[], type[DraftModel]]
    """The network's class, which makes a drafter from settings (`new`) or from a config.json (`from_config`)."""
    recognises: Callable[[Config], bool]
    """Whether a config.json is of this architecture. At most one architecture recognises a config."""
    verify: Verify
    """Checks a saved drafter, including errors that load and only cost acceptance."""
    speculators_layout: SpeculatorsLayout | None = None
    """Second directory that it is saved in, if any."""
    check_target: Callable[[Path, Config], None] = _fits_any
    """Refuses a target (its directory and config) that no such drafter can be built for, with a ModelError."""
    starts_from: StartingModel | None = None
    """Model that it begins from, besides the target, if any."""
    is_language_model: bool = False
    """Whether it is a complete model directory, and is checked as one, too."""
    unquantized_layer: bool = False
    """Whether a quantized target's config must say that the drafter's layer is not quantized."""
    refuses_tiny_base: str = ""
    """Why base_model `tiny` cannot be used, as the rest of a sentence; "" if it can."""
    vllm: VllmOptions | None = None
    sglang: SglangOptions | None = None
    """vllm, sglang: options of these servers; None if the server cannot run such a drafter."""
    serving_note: str = ""
    """Note for users of the drafter, in the release report."""
    untrained_note: str = ""
    """The same note for the starting model, which the evaluation measures as `<name>_untrained`."""

    @property
    def untrained(self) -> str:
        """Name, in reports, of the starting model as it was before training."""
        return f"{self.name}_untrained"

    @property
    def serving(self) -> DrafterServing:
        """What a release needs to know."""
        return DrafterServing(self.name, self.vllm, self.sglang, self.serving_note, self.untrained, self.untrained_note)


SAMPLED_DRAFTS: Mapping[str, Any] = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
"""vLLM's options for drafts that are sampled and verified exactly."""
