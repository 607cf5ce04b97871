-- Postgres, Dagster's events of one run: seconds from start to success of each step, and whether it failed.
-- needs: event_logs
-- parameters: $run
-- makes: rows (step_key, seconds, has_failed)
select
    step_key,
    extract(epoch from max(case when dagster_event_type = 'STEP_SUCCESS' then timestamp end))
        - extract(epoch from min(case when dagster_event_type = 'STEP_START' then timestamp end)) as seconds,
    max(case when dagster_event_type = 'STEP_FAILURE' then 1 else 0 end) as has_failed
from event_logs
where run_id = :run and dagster_event_type in ('STEP_START', 'STEP_SUCCESS', 'STEP_FAILURE')
group by step_key
