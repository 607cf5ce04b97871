"""preference_dataset: pairs of a chosen and a rejected answer to one prompt, and answers with a verdict of their own."""

import dagster as dg

from assets.presentation import changes, shown
from assets.shortages import tell_shortages
from assets.stage_asset import stage_asset
from resources.composing import DatasetSettings, PreferenceSettings, TaughtAnswers, TeacherSettings, build_preferences
from resources.curating import CurationSettings
from resources.stages import ModelPolicy
from resources.workshop import Workshop

SOURCES = ("resources/composing/preferences.py",)


@stage_asset("curated_interactions", "eval_suite", "sft_dataset", "teacher_answers", sources=SOURCES)
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
    README.md.
    """
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
        sources=SOURCES,
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
