"""Training objectives: one module for each loss, a function of model and batch that returns named terms with sum and count.
The trainer knows none of them. Start with `sft.py`, then `distillation.py`; `teacher_cache.py` stores the teacher's
distributions."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.objectives.distillation import Divergence, OnPolicyPlan, distillation_loss, distillation_rows
    from model_ops.objectives.divergence_rows import RowDivergence, mean_divergence, row_divergences
    from model_ops.objectives.on_policy_settings import OnPolicySettings
    from model_ops.objectives.sft import next_token_loss
    from model_ops.objectives.teacher_cache import ABOUT, TeacherCache, write_reported

__getattr__, __dir__, __all__ = door(__name__, __file__)
