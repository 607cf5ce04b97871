-- View of a table slice's files. Views take no bound parameters: sql_literal quotes the values. With union_by_name, each query
-- opens every file before it begins.
-- placeholders: columns, files, types, union_by_name, view
-- makes: temp view <view> (*)
create or replace temp view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = {union_by_name})
