"""merged_model: the fine-tuned model merged with its base or with other models of its shape."""

import dagster as dg

from assets.presentation import shown
from assets.stage_asset import worker_asset
from model_ops.operations import MergeSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("merged_model"), parent_of("rft_model"), parent_of("preference_model"), "base_model", "sft_dataset")
def merged_model(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    merge_settings: dg.ResourceParam[MergeSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model merged with its base model or with other models of the same shape, after `merge:` in the recipe.

    Made from `rft_model`, `preference_model`, `sft_model`, `base_model` and directories, as the recipe lists them; a search of
    weights measures candidates on validation rows of `sft_dataset`. Lies in `models/<workload>/merged_model/<version>/` in the
    Hugging Face layout.
    """
    inputs = {"model": workshop.current("model", policy.source_of("merged_model"))}
    before = inputs["model"]
    if merge_settings.reads_preferred:
        before = inputs["preferred"] = workshop.current("model", policy.source_of("rft_model"))
    if merge_settings.reads_fine_tuned:
        before = inputs["fine_tuned"] = workshop.current("model", policy.source_of("preference_model"))
    base = workshop.current("model", "base_model")
    if merge_settings.reads_base and base.version != before.version:
        inputs["base"] = base
    if merge_settings.reads_rows:
        inputs["dataset"] = workshop.current("dataset", "sft_dataset")
    manifest = workshop.train("merged_model", "merge", merge_settings, inputs, context, outside=merge_settings.directories)
    return shown(manifest, workshop)
