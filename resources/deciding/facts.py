"""What deciding needs to know of a recipe, as plain values: the recipe itself is of a layer above."""

from __future__ import annotations

from dataclasses import dataclass, field

from resources.deciding.settings import DecideSettings
from resources.releasing.model_policy import ModelPolicy


@dataclass(frozen=True)
class RecipeFacts:
    """What a recipe says, as far as deciding asks."""

    workload: str
    policy: ModelPolicy
    base_directory: str = ""
    """The base model's own directory; "" for one on the Hub and for `tiny`."""
    cron: str = ""
    """The schedule; "" where it is off."""
    architecture: str = ""
    """The drafter's."""
    named_datasets: list[str] = field(default_factory=list)
    """Every dataset under `datasets.named`."""
    evaluation_prompts: int = 0
    releases: bool = True
    """Whether the recipe makes a release."""
    as_adapter: bool = False
    """Whether the release is an adapter on the base model; a continued model cannot be released so."""
    base_repository: str = ""
    """The base model's id on the Hub; "" for one that is not there."""
    base_branch: str = ""
    """Its branch, tag or commit there; "" for the default branch."""
    decide: DecideSettings = field(default_factory=DecideSettings)
    """The recipe's `automation.decide`."""
