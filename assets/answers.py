"""A teacher's answers, pairs of a better and a worse answer, and prompts with data to verify an answer."""

import dagster as dg

from assets.ownership import WORKER_POOL
from assets.presentation import changes, shown, tell_shortages
from assets.stage_asset import stage_asset
from model_ops.adapters import model_places
from resources.composing import (
    AnswerStore,
    DatasetSettings,
    ModelTeacher,
    PreferenceSettings,
    RlPromptSettings,
    TaughtAnswers,
    TeacherSettings,
    build_preferences,
    build_rl_prompts,
    build_teacher_answers,
    lent_by,
)
from resources.curating import CurationSettings
from resources.stages import ModelPolicy, parent_of, stage
from resources.workshop import Workshop

TEACHER_SOURCES = ("resources/composing/teachers/teacher_answers.py",)
SAMPLES = "model_ops/operations/sample_answers.py"


@stage_asset(
    "sft_dataset",
    "rl_prompts",
    parent_of("student_model"),
    sources=(*TEACHER_SOURCES, SAMPLES),
    kinds={"parquet"},
    pool=WORKER_POOL,
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
    `datasets/<workload>/teacher_answers/<version>/{train,validation,test,requests,preferences}.parquet`."""
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
        sources=(*TEACHER_SOURCES, *([SAMPLES] if base else [])),
        config={**teacher_settings.counted(), **judged_by},
        inputs=[dataset.as_input(), *([prompts.as_input()] if prompts else []), *taken],
        work=work,
    )
    return shown(manifest, workshop)


PREFERENCE_SOURCES = ("resources/composing/preferences.py",)


@stage_asset("curated_interactions", "eval_suite", "sft_dataset", "teacher_answers", sources=PREFERENCE_SOURCES)
def preference_dataset(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    preference_dataset_settings: dg.ResourceParam[PreferenceSettings],
    sft_dataset_settings: dg.ResourceParam[DatasetSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
    teacher_settings: dg.ResourceParam[TeacherSettings | None],
) -> dg.MaterializeResult:
    """Pairs of a better and a worse answer, and answers that people or the end of a session call good or bad.

    Made from the cleaned tables, with the splits of `sft_dataset` and without items of `eval_suite`. Lies in
    `datasets/<workload>/preference_dataset/<version>/{train,validation,test}.parquet` and `unpaired_*.parquet`, with a card in
    README.md."""
    curated, suite, sft = (workshop.current("dataset", name) for name in ("curated_interactions", "eval_suite", "sft_dataset"))
    settings, judge = preference_dataset_settings, curation_settings.judge
    answers = None
    if teacher_settings is not None and (teacher_settings.verify is not None or settings.confidence.strong):
        answers = workshop.current("dataset", "teacher_answers")
    about = {"workload": workshop.workload, "name": "preference_dataset", "pii": curation_settings.pii}

    def work(output):
        taught = answers and TaughtAnswers(
            workshop.directory(answers),
            workshop.directory(sft),
            "graded" if policy.taught_by_itself else "teacher",
            9 if teacher_settings.judged else 1,
        )
        answer_folder = workshop.lake.root / "answers"
        workshop.lake.mirror.fetch(answer_folder)
        return build_preferences(
            workshop.tables,
            workshop.workload,
            output,
            settings,
            sft_dataset_settings,
            curation_settings,
            curated.version,
            workshop.directory(suite) / "items.parquet",
            sft.metrics.get("lent"),
            taught,
            answer_folder / f"{workshop.workload}.jsonl",
            about,
        )

    manifest = workshop.build(
        "dataset",
        "preference_dataset",
        op="build_preferences",
        sources=PREFERENCE_SOURCES,
        config={
            **settings.model_dump(mode="json"),
            "splits": sft_dataset_settings.model_dump(include={"seed", "split_by", "test_share", "validation_share"}),
            "about": about,
            "curation": curation_settings.as_config(),
        },
        inputs=[
            *(each.as_input() for each in (curated, suite, sft, answers) if each),
            *(workshop.slice(name) for name in ("cleaned_interactions", "interactions", "feedback")),
            *([workshop.slice("judgements")] if judge else []),
        ],
        work=work,
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))


PROMPT_SOURCES = ("resources/composing/rl_prompts.py",)


@stage_asset("cleaned_interactions", "eval_suite", "sft_dataset", sources=PROMPT_SOURCES)
def rl_prompts(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    rl_prompts_dataset_settings: dg.ResourceParam[RlPromptSettings],
    sft_dataset_settings: dg.ResourceParam[DatasetSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """Prompts with data to verify an answer: logged lines of reinforcement fine-tuning, and files of tasks.

    Prompts with evaluation items, and tasks that contradict each other, are left out. Made from `cleaned_interactions` and
    `eval_suite`, with the splits of `sft_dataset`. Lies in
    `datasets/<workload>/rl_prompts/<version>/{train,validation,test}.parquet`, with a card in README.md."""
    suite, tasks = workshop.current("dataset", "eval_suite"), rl_prompts_dataset_settings.tasks
    about = {"workload": workshop.workload, "name": "rl_prompts", "pii": curation_settings.pii}
    splits = sft_dataset_settings.model_dump(include={"seed", "split_by", "test_share", "validation_share"})
    lent = lent_by(version.metrics for version in workshop.registry.versions("dataset", "sft_dataset"))
    manifest = workshop.build(
        "dataset",
        "rl_prompts",
        op="build_rl_prompts",
        sources=PROMPT_SOURCES,
        config={
            "tasks": {name: task.model_dump(mode="json", exclude={"uri", "answers"}) for name, task in sorted(tasks.items())},
            "max_rows": rl_prompts_dataset_settings.max_rows,
            "splits": splits,
            "lent": lent,
            "about": about,
            "decontamination": curation_settings.decontamination.model_dump(mode="json"),
        },
        inputs=[
            suite.as_input(),
            *(workshop.slice(name) for name in ("cleaned_interactions", "interactions")),
            *workshop.outside(
                {
                    **{name: task.uri for name, task in tasks.items()},
                    **{f"{name} answers": task.answers for name, task in tasks.items() if task.answers},
                }
            ),
        ],
        work=lambda output: build_rl_prompts(
            workshop.tables,
            workshop.workload,
            output,
            rl_prompts_dataset_settings,
            sft_dataset_settings,
            workshop.directory(suite) / "items.parquet",
            curation_settings.decontamination,
            about,
            lent,
        ),
    )
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))
