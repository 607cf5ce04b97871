"""The job `retention` and its schedule: every night what the recipe no longer keeps is removed from the lake."""

from pathlib import Path

import dagster as dg

from pipelines.contract.recipe import Recipe
from resources.erasing.retention import RetentionSettings, remove_old_data
from resources.lake import Lake

AT = "30 2 * * *"
WAITS_S, TRIES = 600, 12
"""While a run holds the lake, the job tries again every ten minutes for two hours; the next night is another try."""


def retention(recipe: Recipe, place: Path) -> tuple[list[dg.JobDefinition], list[dg.ScheduleDefinition]]:
    """Job and schedule of a recipe with `retention`; none without."""
    settings: RetentionSettings | None = recipe.retention
    if settings is None:
        return [], []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=TRIES, delay=WAITS_S))
    def remove_what_is_old(context: dg.OpExecutionContext) -> None:
        """Removes rows, versions and table files that are older than the recipe's `retention`."""
        found = remove_old_data(Lake.open(place), recipe.workload, settings)
        context.log.info(f"rows removed by table: {found.rows or 'none'}; emptied: {found.emptied or 'none'}; versions: "
                         f"{len(found.versions)}; bytes of old table files: {found.old_bytes:,}")

    @dg.job(name="retention", description="Removes rows, versions and old table files that are older than the recipe's "
            "`retention`. Keeps whatever a release or a current artefact was made from.")
    def job() -> None:
        remove_what_is_old()

    schedule = dg.ScheduleDefinition(
        name="nightly_retention", job=job, cron_schedule=AT, default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Runs the job retention every night at 02:30 UTC, while the Dagster daemon runs.")
    return [job], [schedule]
