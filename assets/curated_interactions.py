"""curated_interactions: one grouping pass over all days: duplicates, contamination; every row gets a decision."""

from pathlib import Path
from typing import Any

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.presentation import shown, table
from assets.stage_asset import stage_asset
from resources.catalog import count_records, shortage
from resources.composing import SeedSettings
from resources.curating import CurationSettings, RecordCounts, curate
from resources.manifests import external_input
from resources.sources import SourceSettings
from resources.workshop import Workshop

SOURCES = ("resources/curating/selection.py",)
EMBEDDING = ("model_ops/operations/embed.py",)
"""Code of the worker that embeds rows, for semantic duplicates."""


@stage_asset("cleaned_interactions", "feedback", "judgements", "eval_suite", sources=SOURCES, pool=LAKE_POOL)
def curated_interactions(
    workshop: dg.ResourceParam[Workshop], curation_settings: dg.ResourceParam[CurationSettings]
) -> dg.MaterializeResult:
    """The rows to train on, over all days: without duplicates, thumbs-down answers and leaked evaluation items.

    Every row gets a decision in the table `decisions`. Made from `cleaned_interactions`, `feedback`, the evaluation suite and,
    if the recipe names a judge, `judgements`. Lies in `datasets/<workload>/curated_interactions/<version>/` (Parquet).
    """
    suite = workshop.current("dataset", "eval_suite")
    # interactions: has the ids that feedback names
    tables = ["cleaned_interactions", "interactions", "feedback", *(["judgements"] if curation_settings.judge else [])]
    semantic = curation_settings.semantic_duplicates

    def work(output: Path) -> dict[str, Any]:
        items = workshop.directory(suite) / "items.parquet"
        report = curate(
            workshop.tables,
            workshop.workload,
            output,
            curation_settings,
            items,
            embed=lambda texts: workshop.embed(texts, semantic.model or "", semantic.max_length),
        )
        workshop.publish_catalog()
        counts = count_records(workshop.lake, workshop.workload, output.name)
        return {**report.as_metrics(), "records": counts.as_metrics()}

    manifest = workshop.build(
        "dataset",
        "curated_interactions",
        op="curate",
        sources=(*SOURCES, *(EMBEDDING if semantic.enabled else ())),
        config=curation_settings.as_config(),
        inputs=[
            *(workshop.slice(name) for name in tables),
            suite.as_input(),
            *([external_input(semantic.model)] if semantic.enabled else []),
        ],
        work=work,
    )
    counts = RecordCounts.of(manifest)
    return shown(
        manifest, workshop, first={"dropped": table(counts.as_rows()), "records_read": counts.read, "kept": counts.rows}
    )


@dg.asset_check(asset="curated_interactions", blocking=True)
def counts_add_up(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """Records read = kept + dropped + quarantined: no record is lost, none is counted twice. Blocks the next steps."""
    counts = RecordCounts.of(workshop.current("dataset", "curated_interactions"))
    return dg.AssetCheckResult(
        passed=counts.adds_up,
        metadata={
            "read": counts.read,
            "kept": counts.rows,
            "dropped": sum(counts.dropped.values()),
            "quarantined": sum(counts.quarantined.values()),
        },
    )


@dg.asset_check(asset="curated_interactions", blocking=True)
def enough_rows_are_left(
    workshop: dg.ResourceParam[Workshop],
    sources: dg.ResourceParam[dict[str, SourceSettings]],
    seeds: dg.ResourceParam[dict[str, SeedSettings]],
) -> dg.AssetCheckResult:
    """Curation leaves rows, and no source of any size is in quarantine as a whole. Blocks the next steps."""
    counts = RecordCounts.of(workshop.current("dataset", "curated_interactions"))
    problem = shortage(workshop.lake, workshop.workload, counts, sources, len(seeds))
    return dg.AssetCheckResult(
        passed=not problem,
        description=problem or None,
        metadata={"read": counts.read, "kept": counts.rows, "quarantined": sum(counts.quarantined.values())},
    )
