-- Sessions that earlier versions of the dataset trained on. $files: their train.parquet
-- parameters: $files
-- makes: temp table trained_before (session_id)
create or replace temp table trained_before as
select distinct session_id
from read_parquet($files, union_by_name = true)
where origin = 'interaction' and session_id is not null
