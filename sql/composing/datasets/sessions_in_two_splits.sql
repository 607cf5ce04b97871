-- Sessions with rows in more than one of the dataset's files.
-- $files: paths of train, validation and test
with placed as (
    select session_id, filename
    from read_parquet($files, filename = true)
    where origin = 'interaction' and session_id is not null
),
straddling as (
    select session_id
    from placed
    group by session_id
    having count(distinct filename) > 1
)
select count(*) as sessions
from straddling
