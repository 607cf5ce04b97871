"""Reinforcement fine-tuning: graded rollouts become advantages, batches and the losses of a policy.

Start with `rollout_plan.py`, which samples a chunk of prompts and learns it, and `policy_losses.py`, the losses by name.
`advantages.py` turns grades into advantages, `prompt_pool.py` chooses the prompts, `canary.py` refuses answers of other
weights, `rollout_watch.py` measures what goes wrong while the model learns. `asynchronous_plan.py` learns what engines in other
processes sample meanwhile. `rft_settings.py` and `engine_settings.py` are the recipe's keys, and import no torch.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.reinforcement.asynchronous_plan import LANES, AsynchronousPlan
    from model_ops.reinforcement.canary import CANARY_GAP
    from model_ops.reinforcement.engine_settings import RolloutServerSettings
    from model_ops.reinforcement.held_out_rollouts import HeldOutRollouts
    from model_ops.reinforcement.policy_loss import PolicyLoss
    from model_ops.reinforcement.rft_settings import LOOKUP_DRAFTERS, TASKSETS, RftSettings
    from model_ops.reinforcement.rollout_plan import RolloutPlan
    from model_ops.reinforcement.rollout_watch import variance_shares

__getattr__, __dir__, __all__ = door(__name__, __file__)
