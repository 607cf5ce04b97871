"""What deciding needs to know of a recipe, as plain values: the recipe itself is of a layer above."""

from __future__ import annotations

from dataclasses import dataclass, field

from resources.releasing.model_policy import ModelPolicy


@dataclass(frozen=True)
class RecipeFacts:
    """base_directory: the base model's own directory; "" for one on the Hub and for `tiny`. base_repository: its id on the Hub;
    "" for one that is not there. base_branch: its branch, tag or commit there; "" for the default branch. cron: of the
    schedule; "" where it is off. architecture: of the drafter. named_datasets: every dataset under `datasets.named`.
    evaluation_prompts: of the recipe. releases: whether it makes a release. as_adapter: whether that is an adapter on the base
    model, which a model that continues an earlier one has not."""

    workload: str
    policy: ModelPolicy
    base_directory: str = ""
    cron: str = ""
    architecture: str = ""
    named_datasets: list[str] = field(default_factory=list)
    evaluation_prompts: int = 0
    releases: bool = True
    as_adapter: bool = False
    base_repository: str = ""
    base_branch: str = ""
