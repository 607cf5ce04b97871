"""served_answers: how each logged answer was sampled, and its exact token ids."""

import dagster as dg

from assets.presentation import shown
from assets.stage_asset import stage_asset
from resources.composing import build_served_answers
from resources.stages import ModelPolicy
from resources.workshop import Workshop

SOURCES = ("resources/composing/served_answers.py",)


@stage_asset("sft_dataset", "interactions", sources=SOURCES)
def served_answers(workshop: dg.ResourceParam[Workshop], policy: dg.ResourceParam[ModelPolicy]) -> dg.MaterializeResult:
    """How each logged answer was sampled (temperature, top_p, ...), and its exact token ids if the log has them.

    Token ids are kept only for rows in which no personal data was replaced. Made from `sft_dataset`, the named datasets that
    are trained on, and `interactions`, for the trainings. Lies in `datasets/<workload>/served_answers/<version>/` (Parquet).
    """
    datasets = [workshop.current("dataset", name) for name in ("sft_dataset", *policy.named_datasets)]
    manifest = workshop.build(
        "dataset",
        "served_answers",
        op="build_served_answers",
        sources=SOURCES,
        config={},
        inputs=[*(dataset.as_input() for dataset in datasets), workshop.slice("interactions", as_served=True)],
        work=lambda output: build_served_answers(
            workshop.tables, workshop.workload, [workshop.directory(dataset) for dataset in datasets], output
        ),
    )
    return shown(manifest, workshop)
