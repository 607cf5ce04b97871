"""A dataset of `datasets.named`: conversations with a mixture of their own, for the stages that name it.

named_dataset(["math-tutor"], "best")            # the asset math-tutor/best, one for each name in the recipe
named_dataset_checks(["math-tutor"], "best")     # its blocking checks
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.ownership import DATASETS, OWNERS
from assets.presentation import changes, shown
from assets.shortages import tell_shortages
from assets.stage_asset import nothing_held_out_is_learnt
from resources.composing import DatasetSettings, NamedDataset, SeedSettings, sessions_in_two_splits
from resources.curating import CurationSettings
from resources.digests import source_digest
from resources.workshop import SFT_SOURCES, Workshop, make_sft_dataset

MADE_OF = ("curated_interactions", "seed_examples", "sft_dataset")


def named_dataset(prefix: Sequence[str], name: str) -> dg.AssetsDefinition:
    """The asset of one named dataset of a recipe. prefix: of its key, the workload."""

    @dg.asset(
        key=[*prefix, name],
        deps=[dg.AssetKey([*prefix, each]) for each in MADE_OF],
        group_name=DATASETS,
        kinds={"duckdb", "parquet"},
        owners=OWNERS,
        code_version=source_digest(*SFT_SOURCES)[:12],
        description=f"Conversations to train on, as datasets.named.{name} mixes and chooses them.\n\nHeld out is what "
        f"`sft_dataset` holds out. Lies in `datasets/<workload>/{name}/<version>/`, with a card in README.md.",
    )
    def named(
        context: dg.AssetExecutionContext,
        workshop: dg.ResourceParam[Workshop],
        sft_dataset_settings: dg.ResourceParam[DatasetSettings],
        named_dataset_settings: dg.ResourceParam[dict[str, NamedDataset]],
        curation_settings: dg.ResourceParam[CurationSettings],
        seeds: dg.ResourceParam[dict[str, SeedSettings]],
        tokenizers: dg.ResourceParam[dict[str, Path]],
    ) -> dg.MaterializeResult:
        manifest = make_sft_dataset(
            workshop, sft_dataset_settings, curation_settings, seeds, tokenizers, name, named_dataset_settings[name]
        )
        tell_shortages(context, manifest)
        return shown(manifest, workshop, **changes(manifest, workshop))

    return named


def named_dataset_checks(prefix: Sequence[str], name: str) -> list[dg.AssetChecksDefinition]:
    """The blocking checks of one named dataset: what those of sft_dataset hold."""
    asset = dg.AssetKey([*prefix, name])

    @dg.asset_check(asset=asset, blocking=True)
    def no_session_in_two_splits(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
        """No session is in two splits, so that held-out sessions are never trained on. Blocks the next steps."""
        shared = sessions_in_two_splits(workshop.directory(workshop.current("dataset", name)))
        return dg.AssetCheckResult(passed=shared == 0, metadata={"sessions_in_two_splits": shared})

    @dg.asset_check(asset=asset, blocking=True)
    def nothing_held_out_is_in_training(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
        """No row that this dataset, sft_dataset, or a dataset that their seeds come from, holds out is in training."""
        return nothing_held_out_is_learnt(workshop, "dataset", name)

    return [no_session_in_two_splits, nothing_held_out_is_in_training]
