"""reward_model: a model that scores answers, trained on pairs of a better and a worse answer."""

import dagster as dg

from assets.overrides import TrainingOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.operations import RewardModelSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("reward_model"), "preference_dataset", "length_report")
def reward_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    reward_model_settings: dg.ResourceParam[RewardModelSettings],
) -> dg.MaterializeResult:
    """A model that scores answers, trained on pairs of a better and a worse answer. No other model starts from it.

    Made from the fine-tuned model and `preference_dataset`; `reward_model:` in the recipe says how. `may_grade` says whether it
    reached its gate on held-out pairs. Lies in `models/<workload>/reward_model/<version>/` as a sequence classifier of
    transformers, with reward.json (calibration, and what was measured) and metrics.jsonl (a line for each step).
    """
    inputs = learnt_inputs(workshop, policy, "reward_model")
    manifest = workshop.train("reward_model", "reward_model", config.applied_to(reward_model_settings), inputs, context)
    return shown(manifest, workshop)


reward_model_learnt_nothing_held_out = held_out_check("reward_model")
