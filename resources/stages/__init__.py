"""The declarations of the graph's stages (table.py), and the order of a recipe's models (model_policy.py)."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.stages.model_policy import ModelPolicy
    from resources.stages.table import (
        STAGES,
        Stage,
        artefact_stages,
        daily_stages,
        last_model,
        logs_stages,
        model_chain,
        named_dataset_stage,
        parent_of,
        planned_sections,
        stage,
        trained_sections,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
