"""Reinforcement fine-tuning: graded rollouts become advantages, batches and the losses of a policy.

Start with `rollout_plan.py`, whose steps learn from rounds of rollouts; `round_asker.py` asks them, also ahead of the training.
`canary.py` refuses answers of other weights, `policy_loss.py` has the losses by name."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.reinforcement.advantages import grades_of_chunks, run_counts, staleness_counts
    from model_ops.reinforcement.canary import CANARY_GAP
    from model_ops.reinforcement.held_out_rollouts import HeldOutRollouts, doubts
    from model_ops.reinforcement.policy_loss import PolicyLoss
    from model_ops.reinforcement.rft_settings import LOOKUP_DRAFTERS, TASKSETS, RftSettings, RolloutServerSettings
    from model_ops.reinforcement.rollout_plan import RolloutPlan, variance_shares
    from model_ops.reinforcement.round_asker import LANES

__getattr__, __dir__, __all__ = door(__name__, __file__)
