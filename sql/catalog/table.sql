-- View of a Delta table's newest version, over the files listed when the catalog was built. A copied lake sets the variable
-- `lake`. Views take no bound parameters: sql_literal quotes the values.
-- placeholders: columns, files, types, view
-- makes: view <view> (*)
create or replace view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)
