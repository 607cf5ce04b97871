"""speculator_dataset: answers of the served model to the traffic's prompts, sampled with the traffic's parameters."""

import dagster as dg

from assets.overrides import AnswersOverrides
from assets.presentation import shown
from assets.stage_asset import worker_asset
from model_ops.speculators import SpeculatorSettings
from resources.stages import ModelPolicy, last_model
from resources.workshop import Workshop


@worker_asset(last_model(), "sft_dataset", "served_answers", "length_report", kind="dataset")
def speculator_dataset(
    context: dg.AssetExecutionContext,
    config: AnswersOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    speculator_settings: dg.ResourceParam[SpeculatorSettings],
) -> dg.MaterializeResult:
    """Answers of the served model to the traffic's prompts, as token ids: what the drafter learns from.

    A drafter must predict its target's answers, which may differ from the logged ones. Made from the served model,
    `sft_dataset` and `served_answers`. Lies in `datasets/<workload>/speculator_dataset/<version>/` (Parquet).
    """
    inputs = {
        "target": workshop.current("model", policy.served),
        "dataset": workshop.current("dataset", "sft_dataset"),
        "served": workshop.current("dataset", "served_answers"),
    }
    answers = speculator_settings.answers
    reuses = config.reuse and workshop.is_alike("dataset", "speculator_dataset", answers, inputs["target"])
    manifest = workshop.train(
        "speculator_dataset", "generate", answers, inputs, context, kind="dataset", continue_from="last" if reuses else None
    )
    return shown(manifest, workshop)
