"""length_report: how many rows each limit on length costs, measured before any model is made from them."""

import dagster as dg

from assets.ownership import WORKER_POOL
from assets.presentation import shown
from assets.stage_asset import stage_asset
from model_ops.evaluation import EvaluateSettings
from model_ops.training import TrainingSettings
from resources.releases import ReleaseSettings
from resources.workshop import Workshop, length_limits


@stage_asset(
    "base_model", "sft_dataset", sources=("model_ops/operations/measure_lengths.py",), kinds={"parquet"}, pool=WORKER_POOL
)
def length_report(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    trained_settings: dg.ResourceParam[dict[str, TrainingSettings]],
    evaluate_settings: dg.ResourceParam[EvaluateSettings],
    release_settings: dg.ResourceParam[ReleaseSettings],
) -> dg.MaterializeResult:
    """Rows that each limit on length costs: max_length of every stage, the model's positions, the room of an answer.

    Counted in the base model's tokens, before anything is trained. Made from `base_model` and `sft_dataset`. Lies in
    `datasets/<workload>/length_report/<version>/` (limits.parquet, lengths.json,
    rendered.html: rows as they are rendered, with what is learnt marked).
    """
    limits = length_limits(trained_settings, evaluate_settings, release_settings)
    inputs = {"model": workshop.current("model", "base_model"), "dataset": workshop.current("dataset", "sft_dataset")}
    manifest = workshop.train("length_report", "measure_lengths", limits, inputs, context, kind="dataset")
    return shown(manifest, workshop)


@dg.asset_check(asset="length_report", blocking=True)
def every_stage_has_rows(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """The limits on length leave rows for every stage of the recipe, evaluation included. Blocks the next steps."""
    problems = workshop.current("dataset", "length_report").metrics["problems"]
    return dg.AssetCheckResult(
        passed=not problems, description="; ".join(problems) or None, metadata={"problems": "; ".join(problems) or "none"}
    )
