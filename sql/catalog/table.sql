-- A Delta table's newest version as a view: its files as they were listed when the catalog was built. A copied lake sets the
-- variable `lake`. Views take no bound parameters: the pieces are quoted by sql_literal.
create or replace view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)
