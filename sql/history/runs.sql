-- SQLite, Dagster's runs.db: the newest runs, and the process that each says it is.
select
    runs.run_id, runs.pipeline_name, runs.status, runs.start_time, runs.end_time,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :tag limit 1) as process
from runs
order by runs.id desc
limit :count
