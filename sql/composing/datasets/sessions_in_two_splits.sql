-- Number of sessions with rows in more than one file of a finished dataset; must be 0. $files: train, validation and test
-- parameters: $files
-- makes: rows (sessions)
with assigned_splits as (
    select session_id, filename
    from read_parquet($files, filename = true)
    where origin = 'interaction' and session_id is not null
),
straddling as (
    select session_id
    from assigned_splits
    group by session_id
    having count(distinct filename) > 1
)
select count(*) as sessions
from straddling
