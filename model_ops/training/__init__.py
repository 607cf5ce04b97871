"""The training loop, which knows no algorithm: it takes a model, a plan of batches and a loss from a room above, and divides
once by the global count of target tokens. Start with `trainer.py`, then `step.py` (one optimizer step) and `settings.py` (what
a recipe can set)."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.training.activations import checkpoint_activations
    from model_ops.training.settings import (
        MOST_VALIDATION_TOKENS,
        SAME_RESULTS,
        ActivationCheckpointing,
        OptimizerName,
        Overflow,
        RowsOf,
        TrainingSettings,
        ValidationPlan,
        first_documents,
        plan_validation,
    )
    from model_ops.training.start_weights import StartWeights, without_dropout
    from model_ops.training.step_meter import MatrixWork, attention_widths, needed_flops
    from model_ops.training.trainer import train
    from model_ops.training.tuning import load_to_tune, save_tuned, validated_as_saved
    from model_ops.training.tuning_settings import TuningSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
