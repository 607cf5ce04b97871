-- Postgres, Dagster's runs: the newest ones, each with the process tag it wrote.
-- needs: run_tags, runs
-- parameters: $count, $tag
-- makes: rows (run_id, pipeline_name, status, start_time, end_time, process)
select
    runs.run_id, runs.pipeline_name, runs.status, runs.start_time, runs.end_time,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :tag limit 1) as process
from runs
order by runs.id desc
limit :count
