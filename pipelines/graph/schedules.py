"""Schedules: read and clean yesterday's logs every day; run `train` on the recipe's cron.

Both are off until switched on, in the recipe (automation.retrain.enabled) or in the UI.
"""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from pipelines.contract.recipe import Recipe


def schedules(recipe: Recipe, logs_job, train_job) -> list[dg.ScheduleDefinition]:
    status = dg.DefaultScheduleStatus.RUNNING if recipe.automation.retrain.enabled else dg.DefaultScheduleStatus.STOPPED
    decides = recipe.automation.decide.enabled  # then the sensor `decide` looks at the cron, within its budget
    return [
        _daily_logs(recipe, logs_job, status),
        dg.ScheduleDefinition(
            name="retraining", job=train_job, cron_schedule=recipe.automation.retrain.cron,
            default_status=dg.DefaultScheduleStatus.STOPPED if decides else status,
            description="Runs the job train at the times of `automation.retrain.cron`: rebuilds datasets, models and drafter "
            "from the traffic so far; steps whose inputs did not change are reused.",
        ),
    ]


def _daily_logs(recipe: Recipe, logs_job, status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="daily_logs", job=logs_job, cron_schedule="0 1 * * *", default_status=status,
        description="Runs the job logs every day at 01:00 UTC over the day before: reads what the gateway wrote, and cleans "
        "every day that late lines belong to.",
    )
    def daily_logs(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        yesterday = (context.scheduled_execution_time - timedelta(days=1)).date()
        if recipe.last_day is not None and yesterday > recipe.last_day:
            return dg.SkipReason(f"this recipe's traffic ended on {recipe.last_day}")
        return dg.RunRequest(run_key=yesterday.isoformat(), partition_key=yesterday.isoformat())

    return daily_logs
