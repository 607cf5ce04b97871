-- Columns of Parquet files: the number of files that have each, and whether all have it with one type.
-- parameters: $files
-- makes: rows (name, files, types)
select name, count(distinct file_name) as files, count(distinct (type, logical_type)) as types
from parquet_schema($files)
group by name
