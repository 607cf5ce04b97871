"""drift_report: each day's traffic compared with the reference window of the release that is served."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.partitions import DAYS, ONE_RUN, days_of
from assets.presentation import embedded, table
from assets.questions import about_table, as_metadata
from assets.stage_asset import stage_asset
from assets.stories import listed
from model_ops.jobs import counted
from resources.curating import CurationSettings, feedback_scales
from resources.drifting import (
    DriftInputs,
    DriftReport,
    DriftSettings,
    compare_traffic,
    plots,
    recent_rows,
    served_release,
    write_drift_page,
)
from resources.launching import relay
from resources.workshop import Workshop


@stage_asset(
    "cleaned_interactions",
    "feedback",
    sources=("resources/drifting/drift.py",),
    kinds={"duckdb", "deltalake"},
    pool=LAKE_POOL,
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
)
def drift_report(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    drift_settings: dg.ResourceParam[DriftSettings],
    curation_settings: dg.ResourceParam[CurationSettings],
) -> Iterator[dg.MaterializeResult]:
    """Traffic of each day and week compared with the reference window: prompt shapes, novelty, language, lengths, tools,
    errors, refusals, feedback, a judge's scores, and the served acceptance length.

    Tests are by session, with a stated rate of false alarms over all of them. Made from `cleaned_interactions` and `feedback`,
    and from `judgements` and `serving_metrics` as far as there are any. Lies in the Delta table `tables/drift`, every value;
    `drift/<workload>.html` shows it."""
    tables, workload = workshop.tables, workshop.workload
    seen = DriftInputs(curation_settings.judge, feedback_scales(tables, workload, curation_settings.feedback))
    report = compare_traffic(tables, workload, drift_settings, seen, served_release(workshop.lake, workload))
    page = write_drift_page(tables, workload, report, drift_settings)
    workshop.publish_catalog()
    for note in report.notes:
        context.log.info(note)
    shown = recent_rows(tables, workload, report.release)
    for row in report.alarms:
        message = f"drift on {row['dt']}: {row['test']} over {row['window_days']} d, {row['value']:.4g}"
        context.log.warning(message)
        relay({"event": "note", "message": message})
    key = dg.AssetKey([workload, "drift_report"])
    for day in days_of(context):
        alarms = [f"{row['test']} ({row['window_days']} d)" for row in shown if row["dt"] == day and row["alarm"]]
        context.add_asset_metadata({"alarms": ", ".join(alarms) or "none"}, asset_key=key, partition_key=day.isoformat())
    newest, _ = _newest(shown)
    columns = ("test", "window_days", "value", "bound", "p", "alarm", "sessions", "problem")
    yield dg.MaterializeResult(
        asset_key=key,
        metadata={
            **listed(_in_short(report, shown)),
            "tests": table([{column: row[column] for column in columns} for row in shown if row["dt"] == newest]),
            "page": dg.MetadataValue.path(str(page)),
            "compared_days": len(report.days),
            "newest_day": newest.isoformat() if newest else "none",
            "sql": as_metadata(about_table("drift", workload)),
            **{f"plot_{test}": embedded(picture, test) for test, picture in plots(shown).items()},
        },
    )


def _newest(shown: Sequence[Mapping[str, Any]]) -> tuple[date | None, list[str]]:
    """The newest compared day and its alarms, in words."""
    newest = max((row["dt"] for row in shown), default=None)
    return newest, [f"{row['test']} over {row['window_days']} d" for row in shown if row["dt"] == newest and row["alarm"]]


def _in_short(report: DriftReport, shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the newest compared day says, and what the report notes."""
    newest, alarms = _newest(shown)
    if newest is not None:
        yield f"{newest}: {', '.join(alarms) + ' differ from the reference' if alarms else 'no test alarms'}"
    if report.reference is not None:
        days = counted(len(report.days), "day")
        yield f"compared with {report.reference.start} to {report.reference.end}; {days} in this run"
    yield from report.notes


@dg.asset_check(asset="drift_report", blocking=False)
def traffic_is_as_the_reference(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """No test alarms on the newest compared day. A warning: an alarm says that traffic changed, not that it is worse."""
    release = served_release(workshop.lake, workshop.workload).name
    shown = recent_rows(workshop.tables, workshop.workload, release)
    newest, alarms = _newest(shown)
    return dg.AssetCheckResult(
        passed=not alarms,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{newest}: {', '.join(alarms)}" if alarms else None,
        metadata={"day": newest.isoformat() if newest else "none was compared", "alarms": ", ".join(alarms) or "none"},
    )
