"""sft_model: the base model fine-tuned on the assistant's turns of the traffic."""

import dagster as dg

from assets.overrides import SftOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.operations import SftSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("sft_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report")
def sft_model(
    context: dg.AssetExecutionContext,
    config: SftOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    sft_settings: dg.ResourceParam[SftSettings],
) -> dg.MaterializeResult:
    """The base model fine-tuned on the assistant's turns of `sft_dataset`.

    Made from `base_model` and `sft_dataset` (or the dataset that `sft.dataset` names, or `teacher_answers`); `sft:` in the
    recipe says how (full, LoRA or QLoRA). Lies in `models/<workload>/sft_model/<version>/` in the Hugging Face layout, with
    metrics.jsonl (a line for each step).
    """
    inputs = learnt_inputs(workshop, policy, "sft_model")
    asked = config.continue_from_last or sft_settings.continue_from == "last"
    learnt = workshop.learnt_before("model", "sft_model", inputs, same="model", dataset="dataset") if asked else None
    settings = config.model(sft_settings, may_continue=learnt is not None)
    continues = settings.continue_from == "last" and learnt is not None
    manifest = workshop.train(
        "sft_model",
        "sft",
        settings,
        inputs,
        context,
        continue_from="last" if continues else None,
        pinned={"learnt": learnt} if continues and learnt is not None else None,
    )
    return shown(manifest, workshop)


sft_model_learnt_nothing_held_out = held_out_check("sft_model")
