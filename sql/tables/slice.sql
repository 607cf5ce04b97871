-- View of a table slice's files. Views take no bound parameters: sql_literal quotes the values.
-- placeholders: columns, files, types, view
-- makes: temp view <view> (*)
create or replace temp view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)
