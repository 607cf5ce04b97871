"""sft_dataset: conversations to train on, mixed by source, split by user."""

from pathlib import Path

import dagster as dg

from assets.presentation import changes, shown
from assets.shortages import tell_shortages
from assets.stage_asset import nothing_held_out_is_learnt, stage_asset
from resources.composing import DatasetSettings, SeedSettings, sessions_in_two_splits
from resources.curating import CurationSettings
from resources.workshop import SFT_SOURCES, Workshop, make_sft_dataset


@stage_asset("curated_interactions", "seed_examples", sources=SFT_SOURCES)
def sft_dataset(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    sft_dataset_settings: dg.ResourceParam[DatasetSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
    seeds: dg.ResourceParam[dict[str, SeedSettings]],
    tokenizers: dg.ResourceParam[dict[str, Path]],
) -> dg.MaterializeResult:
    """Conversations to train on: curated traffic and seeds mixed by source, split into train, validation and test.

    All sessions of a user are in one split, so validation and test are never seen in training. Lies in
    `datasets/<workload>/sft_dataset/<version>/{train,validation,test}.parquet`, with a card in README.md.
    """
    manifest = make_sft_dataset(workshop, sft_dataset_settings, curation_settings, seeds, tokenizers)
    tell_shortages(context, manifest)
    return shown(manifest, workshop, **changes(manifest, workshop))


@dg.asset_check(asset="sft_dataset", blocking=True)
def no_session_in_two_splits(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No session is in two splits, so that held-out sessions are never trained on. Blocks the next steps."""
    shared = sessions_in_two_splits(workshop.directory(workshop.current("dataset", "sft_dataset")))
    return dg.AssetCheckResult(passed=shared == 0, metadata={"sessions_in_two_splits": shared})


@dg.asset_check(asset="sft_dataset", blocking=True)
def nothing_held_out_is_in_training(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No row that this dataset, or a dataset that its seeds come from, holds out is in training. Blocks the next steps."""
    return nothing_held_out_is_learnt(workshop, "dataset", "sft_dataset")
