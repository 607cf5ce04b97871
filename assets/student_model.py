"""student_model: a smaller model that learned the fine-tuned model's distributions, not only its answers."""

import dagster as dg

from assets.overrides import TrainingOverrides
from assets.presentation import shown
from assets.stage_asset import held_out_check, learnt_inputs, worker_asset
from model_ops.adapters import model_places
from model_ops.operations import StudentSettings
from resources.stages import ModelPolicy, parent_of
from resources.workshop import Workshop


@worker_asset(parent_of("student_model"), "sft_dataset", "served_answers", "teacher_answers", "length_report")
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
    inputs, settings = learnt_inputs(workshop, policy, "student_model"), config.applied_to(student_settings)
    outside = model_places(student_settings.base) if student_settings.base else []
    manifest = workshop.train("student_model", "distill", settings, inputs, context, outside=outside)
    return shown(manifest, workshop)


student_model_learnt_nothing_held_out = held_out_check("student_model")
