-- Rows of one version of a dataset, each once with its number of copies, from its split files. Rows of versions before `reason`
-- have none.
-- placeholders: content, files, reason, view
-- makes: temp table <view> (row_id, split, source, reason, content, copies)
create or replace temp table {view} as
select
    row_id, regexp_extract(filename, '([^/]+)\.parquet$', 1) as split, any_value(source) as source,
    {reason} as reason, any_value({content}) as content, count(*) as copies
from read_parquet([{files}], union_by_name = true, filename = true)
group by row_id, filename
