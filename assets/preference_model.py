"""preference_model: the fine-tuned model, trained on what users prefer."""

import dagster as dg

from assets.overrides import TrainingOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.operations import PreferenceTuningSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("preference_model"), "preference_dataset", "rl_prompts", "reward_model", "length_report")
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
    inputs = learnt_inputs(workshop, policy, "preference_model")
    if "preference_dataset" not in policy.disabled:  # also beside prompts that it answers itself
        inputs["dataset"] = workshop.current("dataset", "preference_dataset")
    settings = config.applied_to(preference_settings)
    outside = settings.on_policy.grader.files if settings.on_policy else ()
    manifest = workshop.train("preference_model", "preference", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


preference_model_learnt_nothing_held_out = held_out_check("preference_model")
