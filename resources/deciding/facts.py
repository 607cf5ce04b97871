"""What deciding needs to know of a recipe, as plain values: the recipe itself is of a layer above."""

from __future__ import annotations

from dataclasses import dataclass, field

from resources.releasing.model_policy import ModelPolicy


@dataclass(frozen=True)
class RecipeFacts:
    workload: str
    policy: ModelPolicy
    base_directory: str = ""
    """The base model's own directory; "" for one on the Hub and for `tiny`."""
    cron: str = ""
    """Cron schedule; "" where it is off."""
    architecture: str = ""
    """Architecture of the drafter."""
    named_datasets: list[str] = field(default_factory=list)
    """Every dataset under `datasets.named`."""
    evaluation_prompts: int = 0
    """Number of the recipe's evaluation prompts."""
    releases: bool = True
    """Whether the recipe makes a release."""
    as_adapter: bool = False
    """The release is a LoRA adapter; a continued model cannot be released so."""
    base_repository: str = ""
    """Id of the base model on the Hub; "" if it is not there."""
    base_branch: str = ""
    """Branch, tag or commit on the Hub; "" for the default branch."""
