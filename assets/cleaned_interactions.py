"""cleaned_interactions: each day's rows, cleaned: status, PII redacted, language, measures, MinHash signature."""

from collections.abc import Iterator

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, TRAFFIC
from assets.partitions import DAYS, ONE_RUN, report_days
from resources.curating import CurationSettings, clean, feedback_notes, stale_days
from resources.digests import source_digest
from resources.launching import relay
from resources.workshop import Workshop


@dg.asset(
    deps=["interactions", "feedback"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=LAKE_POOL,
    group_name=TRAFFIC,
    kinds={"duckdb", "deltalake"},
    owners=OWNERS,
    code_version=source_digest("resources/curating/cleaning.py")[:12],
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
