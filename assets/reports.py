"""What is measured: the rows that limits on length cost, and every model and drafter on held-out sessions."""

import json
from pathlib import Path

import dagster as dg

from assets.overrides import EvaluationOverrides
from assets.ownership import WORKER_POOL
from assets.presentation import COMPARES, shown, table
from assets.stage_asset import stage_asset, worker_asset
from model_ops.evaluation import LEAST_GAIN, EvaluateSettings
from model_ops.training import TrainingSettings
from resources.composing import EvalSettings
from resources.manifests import Manifest
from resources.releases import ReleaseSettings
from resources.releasing import SIDE_BY_SIDE, WORST, champion_to_beat
from resources.stages import ModelPolicy, model_chain
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
    rendered.html: rows as they are rendered, with what is learnt marked)."""
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


ROWS = ("sft_dataset", "preference_dataset", "rl_prompts", "eval_suite")
OF_THE_DRAFTER = ("served_answers", "speculator_dataset", "speculator")


@worker_asset(
    *(model.name for model in model_chain()),
    *OF_THE_DRAFTER,
    *ROWS,
    kind="dataset",
    sources=("model_ops/evaluation/report.py",),
)
def evaluation_report(
    context: dg.AssetExecutionContext,
    config: EvaluationOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    evaluate_settings: dg.ResourceParam[EvaluateSettings],
    evals: dg.ResourceParam[dict[str, EvalSettings]],
) -> dg.MaterializeResult:
    """Measurements on held-out sessions, which no stage was trained on, and on the items of `evals`.

    Loss of each model (nats per assistant token), recovery of the quantized model (exp of reference loss - served loss),
    acceptance length of each drafter (tokens per target forward), scores on evaluation items; the served model against its
    base, and model and drafter against those of the champion, the last other release that the endpoint served. Lies in
    `datasets/<workload>/evaluation_report/<version>/`."""
    inputs = _inputs(workshop, policy, bool(evals))
    champion = champion_to_beat(workshop.lake, workshop.workload, inputs["target"], inputs.get("speculator"))
    served_now = {"champion": champion.target, "champion_speculator": champion.drafter} if champion else {}
    pinned = {role: model for role, model in served_now.items() if model is not None}
    manifest = workshop.train(
        "evaluation_report", "evaluate", config.applied_to(evaluate_settings), inputs, context, kind="dataset", pinned=pinned
    )
    return shown(manifest, workshop, first={"worst_answers": _worst(workshop.directory(manifest))})


def _inputs(workshop: Workshop, policy: ModelPolicy, has_tasks: bool) -> dict[str, Manifest]:
    """What is measured, and on what, by its role in the operation."""
    inputs = {each.role: workshop.current("model", each.name) for each in policy.models}
    inputs["target"] = workshop.current("model", policy.served)
    inputs["reference"] = workshop.current("model", policy.reference)
    inputs["dataset"] = workshop.current("dataset", "sft_dataset")
    inputs["served"] = workshop.current("dataset", "served_answers")
    if policy.speculator:
        inputs["speculator"] = workshop.current("model", "speculator")
        inputs["answers"] = workshop.current("dataset", "speculator_dataset")
    for role, learner in policy.measured_rows.items():
        inputs[role] = workshop.current("dataset", learner.rows)
    if policy.drafting_model:
        inputs["draft_model"] = workshop.current("model", policy.drafting_model)
    if has_tasks:
        inputs["tasks"] = workshop.current("dataset", "eval_suite")
    return inputs


def _worst(report: Path) -> dg.MetadataValue:
    """The held-out prompts of the approval page, worst first, without what anyone said: an event log may outlive the rows."""
    path = report / SIDE_BY_SIDE
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return table(
        [
            {
                "harm (nats/token)": round(row["change"], 4),
                "answer": row["marks"].get("target", ""),
                "tokens": row["tokens"],
                "texts": "approval.html of the release",
            }
            for row in rows[:WORST]
        ]
    )


@dg.asset_check(asset="evaluation_report", blocking=False, metadata={COMPARES: "sft_model"})
def fine_tuning_helped(workshop: dg.ResourceParam[Workshop], policy: dg.ResourceParam[ModelPolicy]) -> dg.AssetCheckResult:
    """The fine-tuned model has a measurably lower held-out loss than the base model. A warning only; gates decide on a release.

    Not compared for a model that learnt a teacher's answers: held-out rows are the log's."""
    if policy.rows_of("sft_model") == "teacher_answers":
        return dg.AssetCheckResult(passed=True, metadata={"not compared": "it learnt a teacher's answers, not the log's"})
    measured = workshop.current("dataset", "evaluation_report").metrics
    base, sft = measured.get("loss_base"), measured.get("loss_sft")
    if base is None or sft is None:
        return dg.AssetCheckResult(passed=True, metadata={"not compared": "the report has no loss of both models"})
    high = measured.get("loss_increase_sft_base_high")
    helped = high is not None and high <= -LEAST_GAIN
    said = (
        f"held-out loss {sft:.4f} after fine-tuning, {base:.4f} before, and no gain of {LEAST_GAIN:g} nats per token can be "
        "shown: train longer or on more rows (millrace plan)"
    )
    return dg.AssetCheckResult(
        passed=helped, description=None if helped else said, metadata={"base_loss": base, "fine_tuned_loss": sft}
    )
