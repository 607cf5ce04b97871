"""sft_model: the base model fine-tuned on the assistant's turns of the traffic."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import SftOverrides
from assets.ownership import MODELS, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.operations import SftSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@dg.asset(
    deps=[parent_of("sft_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report"],
    group_name=MODELS,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/operations/sft.py")[:12],
)
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
    model = workshop.current("model", policy.source_of("sft_model"))
    rows = policy.rows_of("sft_model")
    inputs = {"model": model, "dataset": workshop.current("dataset", rows)}
    if rows != "teacher_answers":  # token ids of logged answers say nothing of a teacher's
        inputs["served"] = workshop.current("dataset", "served_answers")
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


@dg.asset_check(asset="sft_model", blocking=True)
def sft_model_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "sft_model")
