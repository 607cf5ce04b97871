"""The table of the graph's stages: name, artefact, operation, place in the chain, and the recipe section that switches it off.
Status, clearing, cost predictions and the Dagster graph read it, so a new stage is one line in table.py and one asset.
model_policy.py says which model each enabled stage starts from and which one is served.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.stages.model_policy import ModelPolicy
    from resources.stages.table import (
        NAMED_DATASET,
        STAGES,
        Stage,
        artefact_stages,
        daily_stages,
        last_model,
        logs_stages,
        model_chain,
        named_dataset_stage,
        parent_of,
        sections,
        stage,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
