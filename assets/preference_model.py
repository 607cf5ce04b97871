"""preference_model: the fine-tuned model, trained on what users prefer."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import TrainingOverrides
from assets.ownership import MODELS, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.operations import PreferenceTuningSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@dg.asset(
    deps=[parent_of("preference_model"), "preference_dataset", "rl_prompts", "reward_model", "length_report"],
    group_name=MODELS,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/operations/preference.py")[:12],
)
def preference_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    preference_settings: dg.ResourceParam[PreferenceTuningSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model, trained so that answers which users chose become likelier than those which they rejected.

    Made from the model before it and `preference_dataset`, or from its own answers to prompts (`preference.on_policy`);
    `preference:` in the recipe says how. The log-probability of a chosen answer may fall: what is learnt is the difference.
    Lies in `models/<workload>/preference_model/<version>/` in the Hugging Face layout, with metrics.jsonl (a line for each
    step), and sampled.parquet (a row for each of its own answers).
    """
    inputs = {"model": workshop.current("model", policy.source_of("preference_model"))}
    for role, rows in (("dataset", "preference_dataset"), ("prompts", "rl_prompts")):
        if rows not in policy.disabled and (role == "dataset" or policy.rows_of("preference_model") == rows):
            inputs[role] = workshop.current("dataset", rows)
    if "preference_model" in policy.graded_by_reward_model:
        inputs["reward_model"] = workshop.current("model", "reward_model")
    settings = config.applied_to(preference_settings)
    outside = settings.on_policy.grader.files if settings.on_policy else ()
    manifest = workshop.train("preference_model", "preference", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


@dg.asset_check(asset="preference_model", blocking=True)
def preference_model_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "preference_model")
