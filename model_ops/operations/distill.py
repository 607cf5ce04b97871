"""Operation `distill`: initialises a shallower student from layers of its teacher and trains it by distillation.

Job inputs: `teacher` (a model directory), `dataset`, optionally `served` (token ids of logged answers). Output: the student
as a model directory of its own.

The student gets evenly spaced layers of the teacher with their weights, always including the first and the last; everything
else is copied. Training minimises KL(teacher || student) on assistant tokens, both at `temperature` and scaled by its square
(Hinton et al., arXiv 1503.02531), mixed with cross-entropy by `label_weight`. label_weight=1 is plain SFT of the same student
on the same rows in the same order, the baseline for distillation.

Under torchrun (settings.mesh) the first process reads the teacher, and both models are sharded over the mesh in the same way.
"""

from __future__ import annotations

from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.models.end_of_text import add_end_of_text
from model_ops.models.model_directory import load_model, save_model
from model_ops.models.shallower import evenly_spaced, make_student
from model_ops.objectives.distillation import distillation_loss
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.distill_settings import StudentSettings
from model_ops.parallel.world import World
from model_ops.progress import Progress
from model_ops.rendering.end_of_turn_ids import end_of_turn_ids
from model_ops.training.chats import read_chats, validation_of
from model_ops.training.packing import PackedPlan
from model_ops.training.trainer import train
from model_ops.training.validation import first_documents, plan_validation


def run(job: Job, progress: Progress) -> dict[str, float | int | list[int]]:
    """Creates, trains and saves the student. Raises ModelError for a bad teacher or dataset, before weights are loaded."""
    settings = job.settings_as(StudentSettings)
    place = job.input("teacher")
    world = World.start(settings.mesh)
    chats = read_chats(job.input("dataset"), place, settings, job.inputs.get("served"))
    teacher = load_model(place, device=world.loading_device).requires_grad_(False)
    try:
        depth = settings.depth(teacher.config.num_hidden_layers)
    except ValueError as error:
        raise ModelError(str(error)) from error
    layers = evenly_spaced(teacher.config.num_hidden_layers, depth)
    student = make_student(teacher, layers)
    world.place(student, settings.precision)
    loss = next_token_loss
    if settings.label_weight < 1:
        world.place(teacher, settings.precision)
        loss = distillation_loss(teacher, settings.temperature, settings.label_weight, world)
    del teacher  # not needed beside the student where only the labels teach
    plan = PackedPlan(chats.documents, settings)
    checks = plan_validation(len(plan), settings)
    held_out = first_documents(chats.validation, checks.tokens)
    result = train(
        student, plan, loss, settings, job.output / ".work", progress, "distill",
        validate=validation_of(student, held_out, settings.precision, world), validate_every=checks.every, world=world,
    )
    add_end_of_text(student, end_of_turn_ids(chats.tokenizer))
    save_model(student, chats.tokenizer, job.output)
    return {**result.metrics(chats.counts), "teacher_layers": layers}
