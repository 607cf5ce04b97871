"""One more try for a run whose worker was killed, by whatever on the machine killed it.

Dagster's daemon retries no run whose step failed (dagster.yaml), since most would fail again. A killed worker is distinguished
here: its run is started again once, from the failed step, which continues from its checkpoint.
"""

from __future__ import annotations

import dagster as dg

ONCE = {"dagster/retry_on_asset_or_op_failure": "true", "dagster/max_retries": "1"}


def ask_for_another_try(context: dg.AssetExecutionContext | None) -> None:
    """Marks the run for one retry, if the daemon launched it. A run of `millrace run` is continued by the next one."""
    if context is not None and context.run.remote_job_origin is not None:
        context.instance.add_run_tags(context.run_id, ONCE)
