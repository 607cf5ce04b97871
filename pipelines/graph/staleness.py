"""Which assets of the job `train` show as out of date after new logs, and by when an asset should have been made again.

Dagster leaves out a dependency on all partitions of a time window (1.13,
`CachingStaleStatusResolver._get_partition_dependencies`), so each asset that traffic reaches also depends on `traffic_digest`,
whose data version is the digest of the rows. Where the recipe's schedule is on, lateness of the ends of the two jobs is a
warning first, then a failure.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import dagster as dg
from croniter import croniter

from pipelines.contract import Recipe
from resources.stages import logs_stages, stage

TRAFFIC_DIGEST = "traffic_digest"


def behind_traffic(workload: str, reads: Mapping[dg.AssetKey, Sequence[dg.AssetKey]]) -> set[dg.AssetKey]:
    """The assets outside the job `logs` that traffic reaches, directly or through others. The endpoint is not among them: it
    follows a release, and a person may let it wait."""
    of_logs = {dg.AssetKey([workload, name]) for name in logs_stages()}
    endpoint = dg.AssetKey([workload, stage("endpoint").name])
    behind: set[dg.AssetKey] = set()
    more = True
    while more:
        reached = {key for key, above in reads.items() if key not in of_logs and any(one in of_logs | behind for one in above)}
        more, behind = reached != behind, reached
    return behind - {endpoint}


LOOKED_AT = 400
"""Ticks of a cron schedule among which the longest pause is found: more than a year of days."""
DAY = timedelta(days=1)
LONGEST_LOGS = timedelta(hours=2)
"""How long after its schedule the job `logs` may take before there is a warning."""


def freshness_of(recipe: Recipe, name: str) -> dg.FreshnessPolicy | None:
    """The policy of an asset; None without a schedule, for traffic that has ended, and for assets that are not watched."""
    if not recipe.automation.retrain.enabled or recipe.last_day is not None:
        return None
    if name == TRAFFIC_DIGEST:
        return dg.FreshnessPolicy.time_window(warn_window=DAY + LONGEST_LOGS, fail_window=2 * DAY + LONGEST_LOGS)
    if name == last_of_train(recipe):
        pause = longest_pause(recipe.automation.retrain.cron)
        return dg.FreshnessPolicy.time_window(warn_window=1.25 * pause, fail_window=2.25 * pause)
    return None


def last_of_train(recipe: Recipe) -> str:
    """The last asset that every training makes. The endpoint is none: it moves only where somebody approved."""
    return "evaluation_report" if "release_candidate" in recipe.disabled else "release_candidate"


def longest_pause(cron: str) -> timedelta:
    """The longest time between two ticks of a cron schedule."""
    ticks = croniter(cron, datetime(2026, 1, 1, tzinfo=UTC))
    times = [ticks.get_next(datetime) for _ in range(LOOKED_AT)]
    return max(later - earlier for earlier, later in pairwise(times))
