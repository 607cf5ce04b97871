"""Training objectives: one module for each loss, a function of model and batch that returns named terms with sum and count.

The trainer in `training` knows none of them. Start with `sft.py`, then `distillation.py`. `spelling.py` and
`spelt_distillation.py` learn from a teacher with another tokenizer; `teacher_cache.py` stores the teacher's distributions;
`on_policy.py` samples from the student while it trains. `preference_losses.py` holds the losses of preference training,
`preference.py` their sum; `policy_losses.py` and `rollout_plan.py` are those of reinforcement fine-tuning.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.objectives.asynchronous_plan import LANES, AsynchronousPlan
    from model_ops.objectives.distillation import Divergence, distillation_loss, distillation_rows, refuse_unusual_head
    from model_ops.objectives.divergence_rows import RowDivergence, mean_divergence, row_divergences
    from model_ops.objectives.held_out_preferences import HeldOutPreferences
    from model_ops.objectives.held_out_rollouts import HeldOutRollouts
    from model_ops.objectives.hidden_matching import HiddenStateMatching, segment_ends
    from model_ops.objectives.mismatched_answers import MismatchedPlan
    from model_ops.objectives.on_policy import OnPolicyPlan
    from model_ops.objectives.on_policy_settings import OnPolicySettings
    from model_ops.objectives.paired_batches import PairedPlan
    from model_ops.objectives.policy_loss import PolicyLoss
    from model_ops.objectives.preference import PreferenceLoss
    from model_ops.objectives.preference_batches import PreferencePlan
    from model_ops.objectives.reference_log_probs import ReferenceLogProbs
    from model_ops.objectives.reward_loss import PairStreams, RewardBatch, RewardLoss, bradley_terry, validation_of_pairs
    from model_ops.objectives.rft_settings import LOOKUP_DRAFTERS, TASKSETS, RftSettings
    from model_ops.objectives.rollout_plan import CANARY_GAP, RolloutPlan
    from model_ops.objectives.rollout_watch import variance_shares
    from model_ops.objectives.sampled_answer_rows import SAMPLED_ANSWER_ROWS
    from model_ops.objectives.sampled_answers import AnswerLog
    from model_ops.objectives.sampled_pair_settings import SampledPairSettings
    from model_ops.objectives.sampled_pairs import SampledPairPlan
    from model_ops.objectives.sampled_rounds import SampledRounds
    from model_ops.objectives.sft import next_token_loss
    from model_ops.objectives.spelling import Spelling
    from model_ops.objectives.spelt_distillation import spelt_distillation_loss
    from model_ops.objectives.teacher_cache import ABOUT, TeacherCache, write_told

__getattr__, __dir__, __all__ = door(__name__, __file__)
