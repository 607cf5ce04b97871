-- SQLite, Dagster's events of one run: seconds from start to success of each step, and whether it failed.
-- needs: event_logs
-- makes: rows (step_key, seconds, has_failed)
select
    step_key,
    (julianday(max(case when dagster_event_type = 'STEP_SUCCESS' then timestamp end))
        - julianday(min(case when dagster_event_type = 'STEP_START' then timestamp end))) * 86400.0 as seconds,
    max(dagster_event_type = 'STEP_FAILURE') as has_failed
from event_logs
where dagster_event_type in ('STEP_START', 'STEP_SUCCESS', 'STEP_FAILURE')
group by step_key
