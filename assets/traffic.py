"""The traffic: logs in place, their rows by day, cleaned, judged and curated, with one digest of all that training reads."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, TRAFFIC
from assets.partitions import DAYS, ONE_RUN, calendar_of, days_of, report_days
from assets.presentation import numbers, shown, table
from assets.questions import about_table, as_metadata
from assets.stage_asset import stage_asset
from resources.catalog import count_records, shortage
from resources.composing import SeedSettings
from resources.curating import CurationSettings, RecordCounts, clean, curate, feedback_notes, judge, stale_days
from resources.digests import AS_SERVED, USER_HASH_KEY, slice_digest, source_digest, unkeyed_sentence
from resources.launching import relay
from resources.manifests import external_input
from resources.reading import TIES, ingest, notes_on, with_chats
from resources.sources import SourceSettings
from resources.workshop import Workshop

logs = dg.AssetSpec(
    "logs",
    group_name=TRAFFIC,
    kinds={"jsonl"},
    owners=OWNERS,
    description=(
        "Request logs and feedback files as the gateway wrote them, at the URIs of the recipe's `sources:`. Read in place, "
        "never copied; an observation counts new and unread objects."
    ),
)


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
    `tables/cleaned_interactions`; `decisions` says for each dropped row which rule dropped it."""
    # late rows change other days too, changed rules all days; unchanged days stay
    days = stale_days(workshop.tables, workshop.workload, curation_settings)
    report = clean(workshop.tables, workshop.workload, days, curation_settings)
    for note in feedback_notes(workshop.tables, workshop.workload, curation_settings.feedback) if days else ():
        context.log.warning(note)
        relay({"event": "note", "message": note})
    workshop.publish_catalog()
    yield from report_days(context, workshop, "cleaned_interactions", report.days)


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
    table `tables/judgements`; `curated_interactions` drops rows below the recipe's minimum."""
    report = judge(workshop.tables, workshop.workload, curation_settings.judge, context.log.info)
    workshop.publish_catalog()
    question = as_metadata(about_table("judgements", workshop.workload))
    return dg.MaterializeResult(metadata={**numbers(report.as_metrics()), "sql": question})


CURATION_SOURCES = ("resources/curating/selection.py",)
EMBEDDING = ("model_ops/operations/embed.py",)
"""Code of the worker that embeds rows, for semantic duplicates."""


@stage_asset("cleaned_interactions", "feedback", "judgements", "eval_suite", sources=CURATION_SOURCES, pool=LAKE_POOL)
def curated_interactions(
    workshop: dg.ResourceParam[Workshop], curation_settings: dg.ResourceParam[CurationSettings]
) -> dg.MaterializeResult:
    """The rows to train on, over all days: without duplicates, thumbs-down answers and leaked evaluation items.

    Every row gets a decision in the table `decisions`. Made from `cleaned_interactions`, `feedback`, the evaluation suite and,
    if the recipe names a judge, `judgements`. Lies in `datasets/<workload>/curated_interactions/<version>/` (Parquet)."""
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
        sources=(*CURATION_SOURCES, *(EMBEDDING if semantic.enabled else ())),
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


READ = ("interactions", "feedback", "cleaned_interactions")
"""Tables that training reads and that the job `logs` makes."""


@stage_asset(*READ, sources=("resources/digests/slices.py",), kinds={"deltalake"}, pool=LAKE_POOL)
def traffic_digest(workshop: dg.ResourceParam[Workshop]) -> dg.MaterializeResult:
    """The digest of all rows that training reads. Its data version changes when any row does, and only then.

    Dagster compares an asset with no partitions of another one when it depends on all of its days, so without this asset the
    training side would stay green after new logs. Made from `interactions`, `feedback` and `cleaned_interactions`: only days
    that were written to are read. Lies in no file; the digests of the days are remembered in `.remembered/`."""
    tables, workload = workshop.tables, workshop.workload
    digests = {name: slice_digest(tables, name, workload) for name in READ}
    digests[AS_SERVED] = slice_digest(tables, "interactions", workload, as_served=True)
    rows = tables.rows_by_day("cleaned_interactions", workload)
    whole = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(digests.items())).encode()).hexdigest()
    return dg.MaterializeResult(
        metadata={
            "days": len(rows),
            "first_day": min(rows).isoformat() if rows else "none",
            "last_day": max(rows).isoformat() if rows else "none",
            "dagster/row_count": sum(rows.values()),
            **{f"digest_of/{name}": digest[:12] for name, digest in digests.items()},
        },
        data_version=dg.DataVersion(whole),
    )
