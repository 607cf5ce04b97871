"""cleaned_interactions: each day's rows, cleaned: status, PII redacted, language, measures, MinHash signature."""

from collections.abc import Iterator

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.partitions import DAYS, ONE_RUN, report_days
from assets.stage_asset import stage_asset
from resources.curating import CurationSettings, clean, feedback_notes, stale_days
from resources.launching import relay
from resources.workshop import Workshop


@stage_asset(
    "interactions",
    "feedback",
    sources=("resources/curating/cleaning.py",),
    kinds={"duckdb", "deltalake"},
    pool=LAKE_POOL,
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
)
def cleaned_interactions(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> Iterator[dg.MaterializeResult]:
    """Interactions checked row by row: failed, cut-off and looping answers are dropped, personal data is replaced.

    Adds language, text measures and a MinHash signature to each row. Made from `interactions` and `feedback`, one partition
    per UTC day; days that were cleaned with other rules are cleaned again. Lies in the Delta table
    `tables/cleaned_interactions`; `decisions` says for each dropped row which rule dropped it.
    """
    # late rows change other days too, changed rules all days; unchanged days stay
    days = stale_days(workshop.tables, workshop.workload, curation_settings)
    report = clean(workshop.tables, workshop.workload, days, curation_settings)
    for note in feedback_notes(workshop.tables, workshop.workload, curation_settings.feedback) if days else ():
        context.log.warning(note)
        relay({"event": "note", "message": note})
    workshop.publish_catalog()
    yield from report_days(context, workshop, "cleaned_interactions", report.days)
