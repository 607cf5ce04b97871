"""Every day: the day before is read and cleaned. On the recipe's cron: everything that depends on it is rebuilt.

Both are off until switched on, in the recipe (automation.retrain.enabled) or in the UI.
"""

from __future__ import annotations

import dagster as dg

from pipelines.recipe import Recipe


def schedules(recipe: Recipe, logs_job, train_job) -> list[dg.ScheduleDefinition]:
    status = dg.DefaultScheduleStatus.RUNNING if recipe.automation.retrain.enabled else dg.DefaultScheduleStatus.STOPPED
    return [
        dg.build_schedule_from_partitioned_job(
            logs_job, name="daily_logs", hour_of_day=1, default_status=status,
            description="Reads what the gateway wrote yesterday, and whatever arrived late.",
        ),
        dg.ScheduleDefinition(
            name="retraining", job=train_job, cron_schedule=recipe.automation.retrain.cron, default_status=status,
            description="Rebuilds datasets, models and drafter; steps whose inputs did not change return at once.",
        ),
    ]
