"""teacher_answers: the training conversations with the answers of a teacher, at an endpoint or in process."""

import dagster as dg

from assets.ownership import WORKER_POOL
from assets.presentation import shown
from assets.stage_asset import stage_asset
from model_ops.adapters import model_places
from resources.composing import AnswerStore, ModelTeacher, TeacherSettings, build_teacher_answers
from resources.curating import CurationSettings
from resources.stages import ModelPolicy, parent_of, stage
from resources.workshop import Workshop

SOURCES = ("resources/composing/teachers/teacher_answers.py",)
SAMPLES = "model_ops/operations/sample_answers.py"


@stage_asset(
    "sft_dataset", "rl_prompts", parent_of("student_model"), sources=(*SOURCES, SAMPLES), kinds={"parquet"}, pool=WORKER_POOL
)
def teacher_answers(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    teacher_settings: dg.ResourceParam[TeacherSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """The conversations of `sft_dataset`, with the last answer of each training row given by a teacher; or the prompts of
    `rl_prompts` with its right answers.

    The teacher is at an endpoint, in a directory, or the fine-tuned model, whose answers then train the student.
    Of several answers the best is kept, where the recipe says how to verify them; rejected ones give preference rows.
    Answers are kept in `answers/<workload>.jsonl` of the lake and asked for only once. Lies in
    `datasets/<workload>/teacher_answers/<version>/{train,validation,test,requests,preferences}.parquet`.
    """
    dataset = workshop.current("dataset", "sft_dataset")
    own = teacher_settings.prompts == "rl_prompts"
    prompts = workshop.current("dataset", "rl_prompts") if own else None
    judge = curation_settings.judge if teacher_settings.judged else None
    judged_by = {"judge": judge.model, "judge_prompt": judge.prompt_sha256} if judge else {}

    base = teacher_settings.base
    tuned = workshop.current("model", policy.source_of("student_model")) if policy.taught_by_itself else None
    taken = [tuned.as_input()] if tuned else [workshop.external(place) for place in model_places(base)] if base else []

    def work(output):
        teacher = None
        if taken:
            teacher = ModelTeacher(taken[0].digest, workshop.answers_of(workshop.directory(tuned) if tuned else base, context))
        workshop.lake.mirror.fetch(workshop.lake.root / "answers")
        with AnswerStore(workshop.lake.root / "answers" / f"{workshop.workload}.jsonl") as store:
            report = build_teacher_answers(
                workshop.directory(dataset),
                output,
                teacher_settings,
                store,
                context.log.info,
                judge,
                teacher,
                prompts and workshop.directory(prompts),
            )
        return report.as_metrics()

    manifest = workshop.build(
        "dataset",
        "teacher_answers",
        op=stage("teacher_answers").operation,
        sources=(*SOURCES, *([SAMPLES] if base else [])),
        config={**teacher_settings.counted(), **judged_by},
        inputs=[dataset.as_input(), *([prompts.as_input()] if prompts else []), *taken],
        work=work,
    )
    return shown(manifest, workshop)
