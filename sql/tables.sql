-- name: columns
-- Columns of Parquet files: the number of files that have each, and whether all have it with one type.
select name, count(distinct file_name) as files, count(distinct (type, logical_type)) as types
from parquet_schema($files)
group by name

-- name: slice
-- View of a table slice's files. Views take no bound parameters: sql_literal quotes the values. With union_by_name, each query
-- opens every file before it begins.
-- placeholders: columns, files, types, union_by_name, view
create or replace temp view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = {union_by_name})

-- name: parquet
-- View of Parquet files. Views take no bound parameters: sql_literal quotes the values.
-- placeholders: files, view
create or replace temp view {view} as
select * from read_parquet([{files}], hive_partitioning = false)

-- name: first_rows
-- The first rows of a table. Table and number are ours, never input.
-- placeholders: count, table
from (select * from {table} limit {count})
