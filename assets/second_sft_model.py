"""second_sft_model: the fine-tuned model, fine-tuned once more on a later dataset."""

import dagster as dg

from assets.overrides import TrainingOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.operations import SecondSftSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("second_sft_model"), "sft_dataset", "served_answers", "length_report")
def second_sft_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    second_sft_settings: dg.ResourceParam[SecondSftSettings],
) -> dg.MaterializeResult:
    """The fine-tuned model, fine-tuned once more on the dataset that `second_sft.dataset` names, with a schedule of its own.

    Begins with the weights of `sft_model` (with LoRA, its merged ones) and a new optimizer. Made from `sft_model` and that
    dataset, or `sft_dataset`; `second_sft:` in the recipe says how. Lies in `models/<workload>/second_sft_model/<version>/` in
    the Hugging Face layout, with metrics.jsonl (a line for each step).
    """
    inputs = learnt_inputs(workshop, policy, "second_sft_model")
    manifest = workshop.train("second_sft_model", "sft", config.applied_to(second_sft_settings), inputs, context)
    return shown(manifest, workshop)


second_sft_model_learnt_nothing_held_out = held_out_check("second_sft_model")
