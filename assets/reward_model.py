"""reward_model: a model that scores answers, trained on pairs of a better and a worse answer."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import TrainingOverrides
from assets.ownership import MODELS, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.operations import RewardModelSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@dg.asset(
    deps=[parent_of("reward_model"), "preference_dataset", "length_report"],
    group_name=MODELS,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/operations/reward_model.py")[:12],
)
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
    inputs = {
        "model": workshop.current("model", policy.source_of("reward_model")),
        "dataset": workshop.current("dataset", policy.rows_of("reward_model")),
    }
    settings = config.applied_to(reward_model_settings)
    manifest = workshop.train("reward_model", "reward_model", settings, inputs, context)
    return shown(manifest, workshop)


@dg.asset_check(asset="reward_model", blocking=True)
def reward_model_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "reward_model")
