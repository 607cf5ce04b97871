"""rl_prompts: prompts with data to verify an answer."""

import dagster as dg

from assets.presentation import changes, shown
from assets.shortages import tell_shortages
from assets.stage_asset import stage_asset
from resources.composing import DatasetSettings, RlPromptSettings, build_rl_prompts, lent_by
from resources.curating import CurationSettings
from resources.workshop import Workshop

SOURCES = ("resources/composing/rl_prompts.py",)


@stage_asset("cleaned_interactions", "eval_suite", "sft_dataset", sources=SOURCES)
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
    `datasets/<workload>/rl_prompts/<version>/{train,validation,test}.parquet`, with a card in README.md.
    """
    suite, tasks = workshop.current("dataset", "eval_suite"), rl_prompts_dataset_settings.tasks
    about = {"workload": workshop.workload, "name": "rl_prompts", "pii": curation_settings.pii}
    splits = sft_dataset_settings.model_dump(include={"seed", "split_by", "test_share", "validation_share"})
    lent = lent_by(version.metrics for version in workshop.registry.versions("dataset", "sft_dataset"))
    manifest = workshop.build(
        "dataset",
        "rl_prompts",
        op="build_rl_prompts",
        sources=SOURCES,
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
