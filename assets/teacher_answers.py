"""teacher_answers: the training conversations with the answers of a teacher at an endpoint."""

import dagster as dg

from assets.ownership import DATASETS, LAKE_POOL, OWNERS
from assets.presentation import shown
from resources.artefacts.source_digest import source_digest
from resources.curating.curation import CurationSettings
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
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """The conversations of `sft_dataset`, with the last answer of each training row given by a teacher at an endpoint.

    Of several answers the best is kept, where the recipe says how to verify them; rejected ones give preference rows.
    Answers that were paid for are kept in `answers/<workload>.jsonl` of the lake and asked for only once. Lies in
    `datasets/<workload>/teacher_answers/<version>/{train,validation,test,requests,preferences}.parquet`.
    """
    dataset = workshop.current("dataset", "sft_dataset")
    judge = curation_settings.judge if teacher_settings.judged else None
    judged_by = {"judge": judge.model, "judge_prompt": judge.prompt_sha256} if judge else {}

    def work(output):
        with KeptAnswers(workshop.lake.root / "answers" / f"{workshop.workload}.jsonl") as kept:
            report = build_teacher_answers(workshop.directory(dataset), output, teacher_settings, kept, context.log.info, judge)
        return report.as_metrics()

    manifest = workshop.build(
        "dataset", "teacher_answers", op=stage("teacher_answers").operation, sources=SOURCES,
        config={**teacher_settings.counted(), **judged_by}, inputs=[dataset.as_input()], work=work)
    return shown(manifest, workshop)
