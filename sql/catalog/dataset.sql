-- View of a dataset's current version. `split` is the file that a row is in.
-- placeholders: files, version, view
-- makes: view <view> (*, split, version)
create view {view} as
select
    columns(lambda name: name not in ('filename', 'split')),
    regexp_extract(filename, '([^/]+)\.parquet$', 1) as split,
    {version} as version
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)
