"""student_model: a smaller model that learned the fine-tuned model's distributions, not only its answers."""

import dagster as dg

from assets.held_out import nothing_held_out_is_learnt
from assets.overrides import TrainingOverrides
from assets.ownership import MODELS, OWNERS, WORKER_POOL
from assets.presentation import shown
from model_ops.adapters import model_places
from model_ops.operations import StudentSettings
from resources.digests import source_digest
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@dg.asset(
    deps=[parent_of("student_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report"],
    group_name=MODELS,
    kinds={"pytorch", "huggingface"},
    owners=OWNERS,
    pool=WORKER_POOL,
    code_version=source_digest("model_ops/operations/distill.py")[:12],
)
def student_model(
    context: dg.AssetExecutionContext,
    config: TrainingOverrides,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    student_settings: dg.ResourceParam[StudentSettings],
) -> dg.MaterializeResult:
    """A smaller model, distilled from the fine-tuned one on `sft_dataset`: its most important layers, or a model of your own.

    It learns the teacher's whole distributions, not only its answers. Made from the fine-tuned model (or its merge) and
    `sft_dataset`, or `teacher_answers`; `student:` in the recipe says how deep it is, or which model it begins as. Lies in
    `models/<workload>/student_model/<version>/` in the Hugging Face layout.
    """
    teacher = workshop.current("model", policy.source_of("student_model"))
    rows = policy.rows_of("student_model")
    inputs = {"teacher": teacher, "dataset": workshop.current("dataset", rows)}
    if rows != "teacher_answers":  # token ids of logged answers say nothing of a teacher's
        inputs["served"] = workshop.current("dataset", "served_answers")
    outside = model_places(student_settings.base) if student_settings.base else []
    settings = config.applied_to(student_settings)
    manifest = workshop.train("student_model", "distill", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


@dg.asset_check(asset="student_model", blocking=True)
def student_model_learnt_nothing_held_out(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No dataset in the model's ancestry trains on a row that one of them holds out. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "model", "student_model")
