"""judgements: a judge model's scores of the cleaned rows, if the recipe names one."""

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.presentation import numbers
from assets.questions import about_table, as_metadata
from assets.stage_asset import stage_asset
from resources.curating import CurationSettings, judge
from resources.workshop import Workshop


@stage_asset(
    "cleaned_interactions", sources=("resources/curating/judgements.py",), kinds={"duckdb", "deltalake"}, pool=LAKE_POOL
)
def judgements(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> dg.MaterializeResult:
    """Scores of a judge model, 1 to 10, for quality and difficulty of each cleaned text.

    Only texts that this model and prompt did not score before are sent. Made from `cleaned_interactions`. Lies in the Delta
    table `tables/judgements`; `curated_interactions` drops rows below the recipe's minimum.
    """
    report = judge(workshop.tables, workshop.workload, curation_settings.judge, context.log.info)
    workshop.publish_catalog()
    question = as_metadata(about_table("judgements", workshop.workload))
    return dg.MaterializeResult(metadata={**numbers(report.as_metrics()), "sql": question})
