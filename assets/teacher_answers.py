"""teacher_answers: the training conversations with the answers of a teacher at an endpoint."""

import dagster as dg

from assets.ownership import DATASETS, LAKE_POOL, OWNERS
from assets.presentation import shown
from resources.artefacts.source_digest import source_digest
from resources.stages import stage
from resources.teaching.kept_answers import KeptAnswers
from resources.teaching.settings import TeacherSettings
from resources.teaching.teacher_answers import build_teacher_answers
from resources.workshop.workshop import Workshop

SOURCES = ("resources/teaching/teacher_answers.py",)


@dg.asset(
    deps=["sft_dataset"], group_name=DATASETS, kinds={"parquet"}, owners=OWNERS, pool=LAKE_POOL,
    code_version=source_digest(*SOURCES)[:12],
)
def teacher_answers(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    teacher_settings: dg.ResourceParam[TeacherSettings],
) -> dg.MaterializeResult:
    """The conversations of `sft_dataset`, with the last answer of each training row given by a teacher at an endpoint.

    Answers that were paid for are kept in `answers/<workload>.jsonl` of the lake and asked for only once. Lies in
    `datasets/<workload>/teacher_answers/<version>/{train,validation,test,requests}.parquet`.
    """
    dataset = workshop.current("dataset", "sft_dataset")

    def work(output):
        with KeptAnswers(workshop.lake.root / "answers" / f"{workshop.workload}.jsonl") as kept:
            report = build_teacher_answers(workshop.directory(dataset), output, teacher_settings, kept, context.log.info)
        return report.as_metrics()

    manifest = workshop.build(
        "dataset", "teacher_answers", op=stage("teacher_answers").operation, sources=SOURCES,
        config=teacher_settings.counted(), inputs=[dataset.as_input()], work=work)
    return shown(manifest, workshop)
