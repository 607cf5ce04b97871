"""What runs by the clock (daily reading, training, retention), and after a run of the job `train` (clearing, the dashboard).

Reading and training are off until switched on, in the recipe (automation.retrain.enabled) or in the UI. Old unfinished
artefacts are removed after a run, not before, so that a run continues its checkpoints first; only after a successful one, and
after a run of a part of the graph only its own assets', since another run may still continue the others.
"""

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

import dagster as dg

from pipelines.contract import Recipe
from pipelines.graph.job_definitions import TRAIN
from resources.artefacts import remove_leftovers
from resources.erasing import RetentionSettings, remove_old_data
from resources.lake import LakeLayout
from resources.launching import relay
from resources.reporting import dashboard_path, write_dashboard


def schedules(recipe: Recipe, logs_job, train_job) -> list[dg.ScheduleDefinition]:
    status = dg.DefaultScheduleStatus.RUNNING if recipe.automation.retrain.enabled else dg.DefaultScheduleStatus.STOPPED
    decides = recipe.automation.decide.enabled  # then the sensor `decide` looks at the cron, within its budget
    return [
        _daily_logs(recipe, logs_job, status),
        dg.ScheduleDefinition(
            name="retraining",
            job=train_job,
            cron_schedule=recipe.automation.retrain.cron,
            default_status=dg.DefaultScheduleStatus.STOPPED if decides else status,
            description="Runs the job train at the times of `automation.retrain.cron`: rebuilds datasets, models and drafter "
            "from the traffic so far; steps whose inputs did not change are reused.",
        ),
    ]


def _daily_logs(recipe: Recipe, logs_job, status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="daily_logs",
        job=logs_job,
        cron_schedule="0 1 * * *",
        default_status=status,
        description="Runs the job logs every day at 01:00 UTC over the day before: reads what the gateway wrote, and cleans "
        "every day that late lines belong to.",
    )
    def daily_logs(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        yesterday = (context.scheduled_execution_time - timedelta(days=1)).date()
        if recipe.last_day is not None and yesterday > recipe.last_day:
            return dg.SkipReason(f"this recipe's traffic ended on {recipe.last_day}")
        return dg.RunRequest(run_key=yesterday.isoformat(), partition_key=yesterday.isoformat())

    return daily_logs


def clear_after(
    context: dg.InitResourceContext, lake: LakeLayout, workload: str, keep_s: float | None, everything: Collection[str]
) -> None:
    """Removes leftovers older than `keep_s` seconds (None: nothing) and reports it on the terminal and in the run's log.

    `everything` names the assets of a whole `train` run.
    """
    run = context.run
    if run is None or run.job_name != TRAIN or context.instance is None:
        return
    if context.instance.get_run_stats(run.run_id).steps_failed:
        return
    selected = {key.path[-1] for key in run.asset_selection or ()}
    whole = not selected or selected >= set(everything)
    for leftover in remove_leftovers(lake, workload, keep_s, None if whole else selected):
        relay({"event": "note", "message": leftover.sentence()})
        if context.log is not None:
            context.log.info(leftover.sentence())


def dashboard_after(context: dg.InitResourceContext, lake: LakeLayout, workload: str) -> None:
    """Also after a failed run, whose page says what there is. A page that cannot be written fails no run: its log says so."""
    run = context.run
    if run is None or run.job_name != TRAIN:
        return
    try:
        write_dashboard(lake, workload, dashboard_path(lake, workload))
    except Exception as error:  # the run's work is done; `millrace report` makes the page again and shows the error
        if context.log is not None:
            context.log.warning(f"the dashboard was not written ({type(error).__name__}): millrace report {workload} says why")


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
        removed = remove_old_data(LakeLayout.open(place), recipe.workload, settings)
        context.log.info(
            f"rows removed by table: {removed.rows or 'none'}; emptied: {removed.emptied or 'none'}; versions: "
            f"{len(removed.versions)}; bytes of old table files: {removed.old_bytes:,}"
        )

    @dg.job(
        name="retention",
        description="Removes rows, versions and old table files that are older than the recipe's "
        "`retention`. Keeps whatever a release or a current artefact was made from.",
    )
    def job() -> None:
        remove_what_is_old()

    schedule = dg.ScheduleDefinition(
        name="nightly_retention",
        job=job,
        cron_schedule=AT,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Runs the job retention every night at 02:30 UTC, while the Dagster daemon runs.",
    )
    return [job], [schedule]
