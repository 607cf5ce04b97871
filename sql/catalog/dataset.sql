-- The current version of a dataset, all its splits; `split` is the file a row stands in.
create view {view} as
select
    * exclude (filename),
    regexp_extract(filename, '([^/]+)\.parquet$', 1) as split,
    {version} as version
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)
