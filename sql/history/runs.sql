-- SQLite, Dagster's runs.db: the newest runs, each with the process and the machine that it wrote into its tags.
-- needs: run_tags, runs
-- parameters: $count, $host, $of, $submitted, $tag
-- makes: rows (run_id, pipeline_name, status, start_time, end_time, process, host, workload_job, submitted)
select
    runs.run_id, runs.pipeline_name, runs.status, runs.start_time, runs.end_time,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :tag limit 1) as process,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :host limit 1) as host,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :of limit 1) as workload_job,
    (select run_tags.value from run_tags where run_tags.run_id = runs.run_id and run_tags.key = :submitted limit 1) as submitted
from runs
order by runs.id desc
limit :count
