"""sft_dataset: conversations to train on, mixed by weight, split by session."""

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import shown
from resources.artefacts.source_digest import source_digest
from resources.composing.datasets import DatasetSettings, build_sft_dataset, sessions_in_two_splits
from resources.workshop.workshop import Workshop

SOURCES = ("resources/composing/datasets.py",)


@dg.asset(
    deps=["curated_interactions", "seed_examples"], group_name=DATASETS, kinds={"duckdb", "parquet"}, owners=OWNERS,
    code_version=source_digest(*SOURCES)[:12],
)
def sft_dataset(
    workshop: dg.ResourceParam[Workshop], dataset_settings: dg.ResourceParam[DatasetSettings]
) -> dg.MaterializeResult:
    """Conversations to train on: curated traffic and seeds mixed by weight, split into train, validation and test.

    All turns of a session are in one split, so validation and test are never seen in training. Lies in
    `datasets/<workload>/sft_dataset/<version>/{train,validation,test}.parquet`.
    """
    curated, seeds = workshop.current("dataset", "curated_interactions"), workshop.current("dataset", "seed_examples")
    manifest = workshop.build(
        "dataset", "sft_dataset", op="build_sft_dataset", sources=SOURCES,
        config=dataset_settings.model_dump(mode="json"), inputs=[curated.as_input(), seeds.as_input()],
        work=lambda output: build_sft_dataset(
            workshop.directory(curated) / "curated.parquet", workshop.directory(seeds) / "seeds.parquet", output,
            dataset_settings, workshop.tables,
        ).as_metrics(),
    )
    return shown(manifest, workshop)


@dg.asset_check(asset="sft_dataset", blocking=True)
def no_session_in_two_splits(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No session is in two splits, so that held-out sessions are never trained on. Blocks the next steps."""
    shared = sessions_in_two_splits(workshop.directory(workshop.current("dataset", "sft_dataset")))
    return dg.AssetCheckResult(passed=shared == 0, metadata={"sessions_in_two_splits": shared})
