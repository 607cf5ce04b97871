-- Parquet files as one view. Views take no bound parameters: the pieces are quoted by sql_literal.
create or replace temp view {view} as
select * from read_parquet([{files}], hive_partitioning = false)
