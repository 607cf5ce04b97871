-- View of all versions of a dataset. `split` is the file that a row is in. A condition on version opens that version's files only.
-- placeholders: files, view
-- makes: view <view> (*, split, version)
create view {view} as
select
    * exclude (filename),
    regexp_extract(filename, '([^/]+)\.parquet$', 1) as split,
    regexp_extract(filename, '([^/]+)/[^/]+$', 1) as version
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)
