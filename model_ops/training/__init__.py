"""The training loop, which knows no algorithm: micro-batches, optimizers, schedules, checkpoints, early end.

It takes a model, a plan of batches and a loss from a room above, and divides once by the global count of target tokens. A
killed run continues from its checkpoint and ends with the same weights. Start with `trainer.py`, then `step.py` (one
optimizer step), `schedules.py` (the learning rate of each step) and `settings.py` (what a recipe can set). `tuning.py` loads
a model for full, LoRA or QLoRA training and saves it.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.training.activations import checkpoint_activations
    from model_ops.training.dropout import without_dropout
    from model_ops.training.flops import MatrixWork, attention_widths, needed_flops
    from model_ops.training.settings import (
        MOST_VALIDATION_TOKENS,
        SAME_RESULTS,
        ActivationCheckpointing,
        OptimizerName,
        Overflow,
        RowsOf,
        TrainingSettings,
    )
    from model_ops.training.start_weights import StartWeights
    from model_ops.training.trainer import train
    from model_ops.training.tuning import load_to_tune, save_tuned, validated_as_saved
    from model_ops.training.tuning_settings import TuningSettings
    from model_ops.training.validation import ValidationPlan, first_documents, plan_validation

__getattr__, __dir__, __all__ = door(__name__, __file__)
