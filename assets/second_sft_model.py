"""second_sft_model: the fine-tuned model, fine-tuned once more on a later dataset."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import TrainingOverrides
from assets.ownership import MODELS, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.operations import SecondSftSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@dg.asset(
    deps=[parent_of("second_sft_model"), "sft_dataset", "served_answers", "length_report"],
    group_name=MODELS,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/operations/sft.py")[:12],
)
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
    inputs = {
        "model": workshop.current("model", policy.source_of("second_sft_model")),
        "dataset": workshop.current("dataset", policy.rows_of("second_sft_model")),
        "served": workshop.current("dataset", "served_answers"),
    }
    manifest = workshop.train("second_sft_model", "sft", config.applied_to(second_sft_settings), inputs, context)
    return shown(manifest, workshop)


@dg.asset_check(asset="second_sft_model", blocking=True)
def second_sft_model_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry, of both stages, trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "second_sft_model")
