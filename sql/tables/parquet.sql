-- View of Parquet files. Views take no bound parameters: sql_literal quotes the values.
-- placeholders: files, view
-- makes: temp view <view> (*)
create or replace temp view {view} as
select * from read_parquet([{files}], hive_partitioning = false)
