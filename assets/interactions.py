"""interactions and feedback: every log line as a row of its UTC day, or in quarantine."""

from collections.abc import Iterator

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, TRAFFIC
from assets.partitions import DAYS, ONE_RUN, calendar_of, days_of, report_days
from resources.digests import USER_HASH_KEY, source_digest, unkeyed_sentence
from resources.launching import relay
from resources.reading import TIES, ingest, notes_on, with_chats
from resources.sources import SourceSettings
from resources.workshop import Workshop

CODE = source_digest("resources/reading/ingestion.py")[:12]


@dg.multi_asset(
    specs=[
        dg.AssetSpec(
            "interactions",
            deps=["logs"],
            group_name=TRAFFIC,
            kinds={"duckdb", "deltalake"},
            owners=OWNERS,
            code_version=CODE,
            description=(
                "One row per logged request and answer, in one schema for all log formats. Made from `logs`, one partition "
                "a UTC day. Lies in the Delta table `tables/interactions`; lines that cannot be read are in `quarantine`."
            ),
        ),
        dg.AssetSpec(
            "feedback",
            deps=["logs"],
            group_name=TRAFFIC,
            kinds={"duckdb", "deltalake"},
            owners=OWNERS,
            code_version=CODE,
            description=(
                "Thumbs, scores and rewards that people or programs gave, each with the id of its interaction, or the reason "
                "why it has none. Made from `logs`, one partition a UTC day. Lies in the Delta table `tables/feedback`."
            ),
        ),
    ],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=LAKE_POOL,
)
def interactions(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    sources: dg.ResourceParam[dict[str, SourceSettings]],
) -> Iterator[dg.MaterializeResult]:
    """Reads new and changed log objects; a line that cannot be read goes to quarantine, with its reason."""
    read = with_chats(workshop.lake.root, workshop.workload, sources)
    report = ingest(workshop.tables, workshop.workload, read, calendar_of(context))
    for note in notes_on(report):
        context.log.warning(note)
        relay({"event": "note", "message": note})
    if (
        report.total.rows
        and (unkeyed := unkeyed_sentence())
        and workshop.tables.holds("interactions", workshop.workload, "user_hash")
    ):
        context.log.warning(
            f"user ids were hashed without a key: who has a list of ids can find theirs among the hashes. Set "
            f"{USER_HASH_KEY} before the first ingest of a lake and keep it: another key gives other hashes"
        )
        relay({"event": "note", "message": f"{unkeyed} before a lake's first ingest"})
    workshop.publish_catalog()
    read_now = {day: counts.model_dump(exclude_defaults=True, by_alias=True) for day, counts in report.days.items()}
    yield from report_days(context, workshop, "interactions", read_now)
    yield from report_days(
        context,
        workshop,
        "feedback",
        {
            day: {
                f"{'tied by' if tie in TIES else 'not tied:'} {tie}": count for tie, count in report.ties.get(day, {}).items()
            }
            for day in {*report.days, *report.tied_anew, *days_of(context)}
        },
    )
