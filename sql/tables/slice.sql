-- The files of a table's slice as one view. Views take no bound parameters: the pieces are quoted by sql_literal.
create or replace temp view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)
