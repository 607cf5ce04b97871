"""Operation `distill`: initialises a student from its teacher's layers or as a model of its own, and distils the teacher.

Job inputs: `teacher` (a model directory), `dataset`, optionally `served` (token ids of logged answers). Training minimises a
divergence of student and teacher at assistant tokens, mixed with cross-entropy by `label_weight`; 1 is plain SFT, the baseline.
Under torchrun (settings.mesh) the first process reads the teacher, and both models are sharded over the mesh in the same way.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from model_ops.answers import InProcessEngine
from model_ops.documents import Chats, PackedPlan, first_difference, read_chats, validation_of
from model_ops.families import stays_float32
from model_ops.jobs import Job, ModelError, Progress, filled
from model_ops.machine import concrete
from model_ops.models import add_end_of_text, end_of_text_ids, load_model, load_tokenizer, read_config, save_model
from model_ops.objectives import (
    ABOUT,
    Divergence,
    OnPolicyPlan,
    TeacherCache,
    distillation_loss,
    next_token_loss,
    write_reported,
)
from model_ops.operations.base_directory import check_base, import_quantized
from model_ops.operations.distill_settings import StudentSettings
from model_ops.parallel import World
from model_ops.pruning import (
    LayerSearch,
    Widths,
    evenly_spaced,
    least_important,
    make_narrower,
    make_student,
    measure_widths,
    refuse_unusable_base,
    widths_of,
)
from model_ops.rendering import EndpointTokens, RenderingSettings, end_of_turn_ids
from model_ops.tensors import Batch, BatchSource, Loss
from model_ops.training import first_documents, plan_validation, train, validated_as_saved

MEASURED_TOKENS, FEWEST_MEASURED = 8_192, 1_024
"""Tokens of held-out rows on which the importance of layers and widths is measured; of layers at least the second number."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Creates, trains and saves the student. Raises ModelError for a bad teacher or dataset, before weights are loaded."""
    settings = job.settings_as(StudentSettings)
    place, work = job.input("teacher"), job.output / ".work"
    world = World.start(settings.mesh)
    settings = concrete(settings, world.device)
    widths = widths_of(
        AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False),
        settings.mlp_width,
        settings.heads,
        settings.hidden_size,
    )
    own = None if settings.base is None else student_base(Path(settings.base), work / "base", world, progress)
    reported = None
    if settings.teacher == "answers":
        chats, reported = read_reported(job.input("dataset"), own or place, settings)
    else:
        chats = read_chats(job.input("dataset"), own or place, settings, job.inputs.get("served"))
        if own is not None:
            chats = as_the_base_reads(job, own, chats, settings)
    teacher = load_model(place, device=world.loading_device).requires_grad_(False)
    search, layers = None, list[int]()
    if own is None:
        search, layers = chosen_layers(teacher, settings, chats, progress)
        student = make_student(teacher, layers)
        if widths != Widths():
            measured = first_documents(chats.validation or chats.documents, MEASURED_TOKENS)
            importance = measure_widths(student, measured, settings.precision)
            student = make_narrower(student, widths, importance)
    else:
        student = load_model(own, device=world.loading_device).requires_grad_(True)
    vocabulary = student.get_input_embeddings().weight.shape[0]
    if not settings.mesh.alone and vocabulary != teacher.get_input_embeddings().weight.shape[0]:
        raise ModelError(
            f"student.base has {vocabulary} rows in its embedding, and the teacher has another number, which "
            "needs one process: leave mesh out, or resize the embedding of student.base"
        )
    world.place(student, settings.precision)
    packed = PackedPlan(chats.documents, settings)
    loss: Loss[Batch] = next_token_loss
    plan: BatchSource[Batch] = packed
    ends = end_of_turn_ids(chats.tokenizer)
    if reported is not None and settings.label_weight < 1:
        packed.streams = write_reported(work / "teacher", chats.documents, reported, vocabulary)
        loss = distillation_loss(None, divergences_of(settings)[0])
    elif settings.label_weight < 1:
        halve_frozen(teacher, settings.precision, world)
        world.place(teacher, settings.precision)
        of_rows, of_samples = divergences_of(settings)
        if settings.teacher == "cache":
            packed.streams = cached(teacher, chats, settings, work / "teacher", progress, vocabulary)
        needed = None if settings.teacher == "cache" and of_samples is None else teacher
        loss = distillation_loss(needed, of_rows, of_samples, world)
        if of_samples is not None:
            sampler = InProcessEngine(student, ends or end_of_text_ids(own or place), settings.on_policy)
            plan = OnPolicyPlan(packed, sampler, settings.on_policy, filled(settings.max_length))
    del teacher  # not needed beside the student where only the labels teach
    checks = plan_validation(len(plan), packed.settings)
    held_out = first_documents(chats.validation, checks.tokens)
    validate = validation_of(student, held_out, settings.precision, world)
    result = train(student, plan, loss, settings, work, progress, "distill", validate, checks.every, world, validate_first=True)
    add_end_of_text(student, ends)
    save_model(student, chats.tokenizer, job.output)
    saved = validated_as_saved(student, validate, result, world, progress, "distill")
    numbers: dict[str, Any] = {}
    if search is not None:
        numbers = {
            "teacher_loss": search.loss,
            "removed_layers": [gone.layer for gone in search.removed],
            "loss_after_removal": [round(gone.loss, 4) for gone in search.removed],
        }
    of_layers = {} if own is not None else {"teacher_layers": layers}
    if reported is not None:
        numbers |= {"logprob_tokens": reported.log_tokens, "label_only_tokens": reported.label_tokens}
    return {**result.metrics({**chats.counts, **saved}), **of_layers, **numbers}


def halve_frozen(teacher: PreTrainedModel, precision: str, world: World) -> None:
    """On one accelerator, under bfloat16: the teacher's weights in bfloat16, in place, because autocast would round those of a
    frozen model again in every forward pass. Several processes round what they gather."""
    if precision != "bfloat16" or world.device.type == "cpu" or world.mesh is not None:
        return
    for name, parameter in teacher.named_parameters():
        if not stays_float32(teacher, name):
            parameter.data = parameter.data.to(torch.bfloat16)


def student_base(base: Path, work: Path, world: World, progress: Progress) -> Path:
    """The directory to load the student from: the base's own, or that of its bfloat16 weights if it is quantized. Raises
    ModelError for a base that cannot be trained, or that is quantized on a mesh."""
    refuse_unusable_base(base)
    if read_config(base).get("quantization_config") is None:
        check_base(base)
        return base
    if world.mesh is not None:
        raise ModelError(
            f"student.base {base} is quantized, which is read in one process: leave mesh out, or give the model "
            "before it was quantized"
        )
    if not (work / "config.json").exists():
        import_quantized(base, work, False, progress)
    return work


def read_reported(dataset: Path, model: Path, settings: StudentSettings) -> tuple[Chats, EndpointTokens]:
    """The dataset with the teacher's answers as its endpoint wrote them. Raises ModelError if the student cannot learn them."""
    if RenderingSettings.read(dataset).thinking != "keep":
        raise ModelError(
            "datasets.sft.thinking changes the teacher's answers, and log-probabilities are those of the answers "
            "as they were given: set it to keep, or set student.teacher to online or cache"
        )
    reported = EndpointTokens.read(dataset / "logprobs.parquet", load_tokenizer(model))
    chats = read_chats(dataset, model, settings, endpoint=reported)
    reported.check()
    return chats, reported


def as_the_base_reads(job: Job, own: Path, chats: Chats, settings: StudentSettings) -> Chats:
    """The rows of student.base, read without the log's token ids if the teacher reads the rows as other tokens. Raises
    ModelError if the student would learn the teacher's log-probabilities then."""
    dataset = job.input("dataset")
    of_teacher = read_chats(dataset, job.input("teacher"), settings, job.inputs.get("served"))
    different = first_difference(of_teacher.tokenizer, chats.tokenizer, of_teacher.documents, chats.documents)
    if different is None:
        return chats
    if settings.label_weight < 1:
        raise ModelError(
            f"student.base {settings.base} has another tokenizer or chat template than the teacher ({different}), so "
            "log-probabilities cannot be learnt: set student.label_weight to 1 to learn answers instead (the teacher's own by "
            "teacher.base: sft), or give a model with the teacher's tokenizer and template"
        )
    return read_chats(dataset, own, settings)


def chosen_layers(
    teacher: PreTrainedModel, settings: StudentSettings, chats: Chats, progress: Progress
) -> tuple[LayerSearch | None, list[int]]:
    """(the search, if there was one; the teacher's layers that the student keeps)."""
    try:
        depth = settings.depth(teacher.config.num_hidden_layers)
    except ValueError as error:
        raise ModelError(str(error)) from error
    search = searched_layers(teacher, depth, settings, chats, progress)
    return search, search.remaining if search else evenly_spaced(teacher.config.num_hidden_layers, depth)


def cached(
    teacher: PreTrainedModel, chats: Chats, settings: StudentSettings, folder: Path, progress: Progress, vocabulary: int
) -> TeacherCache:
    """The teacher's cache over the training documents; that of a run that was stopped is read again."""
    if (folder / ABOUT).exists():
        return TeacherCache(folder, chats.documents)

    def after_batch(done: int, total: int) -> None:
        progress.report("teacher", done, total, "tokens")
        progress.stop_if_requested()

    return TeacherCache.write(
        folder,
        teacher,
        chats.documents,
        settings.top_k,
        settings.temperature,
        settings.precision,
        after_batch=after_batch,
        vocabulary=vocabulary,
        drawn=settings.drawn_tokens,
    )


def divergences_of(settings: StudentSettings) -> tuple[Divergence, Divergence | None]:
    """What is minimised at tokens of the dataset, and at tokens that the student samples; None where it samples none."""
    of_rows = Divergence(settings.temperature, settings.label_weight, settings.beta)
    return of_rows, Divergence(settings.temperature, 0.0, settings.on_policy.beta) if filled(
        settings.on_policy.share
    ) > 0 else None


def searched_layers(
    teacher: PreTrainedModel, depth: int, settings: StudentSettings, chats: Chats, progress: Progress
) -> LayerSearch | None:
    """Which layers the teacher can lose, where importance is asked for and a row can measure it; None: evenly spaced ones."""
    remove = teacher.config.num_hidden_layers - depth
    forwards = sum(teacher.config.num_hidden_layers - gone for gone in range(remove)) or 1
    trained = (settings.steps or MEASURED_TOKENS * forwards) * filled(settings.tokens_per_step)
    tokens = min(MEASURED_TOKENS, max(FEWEST_MEASURED, 4 * trained // forwards))  # no more work than the training itself
    measured = first_documents(chats.validation or chats.documents, tokens)
    if settings.choose_layers == "even" or not remove or not any(document.target_tokens for document in measured):
        return None

    def after_layer(done: int, total: int) -> None:
        progress.report("layers", done, total, "layers")
        progress.stop_if_requested()

    return least_important(teacher, measured, remove, settings.precision, after_layer=after_layer)
