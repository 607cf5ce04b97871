"""preference_dataset: pairs of a chosen and a rejected answer to one prompt."""

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import changes, shown
from resources.composing import DatasetSettings, PreferenceSettings, TeacherSettings, build_preferences
from resources.curating import CurationSettings
from resources.digests import source_digest
from resources.workshop import Workshop

SOURCES = ("resources/composing/preferences.py",)


@dg.asset(
    deps=["curated_interactions", "sft_dataset", "teacher_answers"],
    group_name=DATASETS,
    kinds={"duckdb", "parquet"},
    owners=OWNERS,
    code_version=source_digest(*SOURCES)[:12],
)
def preference_dataset(
    workshop: dg.ResourceParam[Workshop],
    preference_dataset_settings: dg.ResourceParam[PreferenceSettings],
    sft_dataset_settings: dg.ResourceParam[DatasetSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
    teacher_settings: dg.ResourceParam[TeacherSettings | None],
) -> dg.MaterializeResult:
    """Pairs of a better and a worse answer: by feedback, regenerated, edited, or rejected of a teacher.

    Made from the cleaned tables, with the splits of `sft_dataset`. Lies in
    `datasets/<workload>/preference_dataset/<version>/{train,validation,test}.parquet`, with a card in README.md.
    """
    curated, sft = workshop.current("dataset", "curated_interactions"), workshop.current("dataset", "sft_dataset")
    verified = teacher_settings is not None and teacher_settings.verify is not None
    teacher = workshop.current("dataset", "teacher_answers") if verified else None
    about = {"workload": workshop.workload, "name": "preference_dataset", "pii": curation_settings.pii}
    least = curation_settings.feedback.least
    splits = sft_dataset_settings.model_dump(include={"seed", "split_by", "test_share", "validation_share"})
    manifest = workshop.build(
        "dataset",
        "preference_dataset",
        op="build_preferences",
        sources=SOURCES,
        config={**preference_dataset_settings.model_dump(mode="json"), "splits": splits, "about": about, "least": least},
        inputs=[
            curated.as_input(),
            sft.as_input(),
            *([teacher.as_input()] if teacher else []),
            *(workshop.slice(name) for name in ("cleaned_interactions", "interactions", "feedback")),
        ],
        work=lambda output: build_preferences(
            workshop.tables,
            workshop.workload,
            output,
            preference_dataset_settings,
            sft_dataset_settings,
            curated.version,
            sft.metrics.get("lent"),
            workshop.directory(teacher) / "preferences.parquet" if teacher else None,
            about,
            least,
        ),
    )
    return shown(manifest, workshop, **changes(manifest, workshop))
