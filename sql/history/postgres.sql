-- name: runs
-- Postgres, Dagster's runs: the newest ones, each with the process and the machine that it wrote into its tags.
select
    runs.run_id, runs.pipeline_name, runs.status, runs.start_time, runs.end_time,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :tag limit 1) as process,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :host limit 1) as host,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :of limit 1) as workload_job,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :submitted limit 1) as submitted
from runs
order by runs.id desc
limit :count

-- name: steps
-- Postgres, Dagster's events of one run: seconds from start to success of each step, and whether it failed.
select
    step_key,
    extract(epoch from max(case when dagster_event_type = 'STEP_SUCCESS' then timestamp end))
        - extract(epoch from min(case when dagster_event_type = 'STEP_START' then timestamp end)) as seconds,
    max(case when dagster_event_type = 'STEP_FAILURE' then 1 else 0 end) as has_failed
from event_logs
where run_id = :run and dagster_event_type in ('STEP_START', 'STEP_SUCCESS', 'STEP_FAILURE')
group by step_key
