"""The draft model, and the served model's answers that it learns from."""

import dagster as dg

from assets.overrides import AnswersOverrides, DrafterOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, worker_asset
from model_ops.speculators import ARCHITECTURES, SpeculatorSettings
from resources.stages import ModelPolicy, last_model, stage
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
    `sft_dataset` and `served_answers`. Lies in `datasets/<workload>/speculator_dataset/<version>/` (Parquet)."""
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


@worker_asset(
    *stage("speculator").may_start_from, last_model(), "speculator_dataset", sources=("model_ops/speculators/operation.py",)
)
def speculator(
    context: dg.AssetExecutionContext,
    config: DrafterOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    speculator_settings: dg.ResourceParam[SpeculatorSettings],
) -> dg.MaterializeResult:
    """The draft model: proposes tokens that the served model verifies, so that answers come faster and stay the same.

    Trained on `speculator_dataset`, for exactly the weights that are served. Lies in `models/<workload>/speculator/<version>/`
    in the layout that vLLM or SGLang loads for its architecture (`speculator.architecture` in the recipe)."""
    inputs = {"target": workshop.current("model", policy.served), "dataset": workshop.current("dataset", "speculator_dataset")}
    may_continue = config.continue_from_last and workshop.comes_from("model", "speculator", inputs["target"])
    settings, outside = config.drafter(speculator_settings, may_continue), []
    start = ARCHITECTURES[settings.architecture].starts_from
    if start is not None and policy.drafter_from:
        inputs[start.key] = workshop.current("model", policy.drafter_from)
    elif start is not None:
        outside = [place] if (place := getattr(settings, start.key)) else []
    manifest = workshop.train(
        "speculator", "speculator", settings, inputs, context, outside=outside, continue_from=settings.continue_from
    )
    return shown(manifest, workshop)


speculator_learnt_nothing_held_out = held_out_check("speculator")
