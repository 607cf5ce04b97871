-- Rows of every version of every conversation dataset, one row per interaction that a dataset row trains on.
-- placeholders: files
-- makes: view dataset_rows (node, split, row_id, origin, session_id, interaction_id)
create view dataset_rows as
with read_rows as (
    select
        row_id, origin, session_id, interaction_ids,
        parse_path(filename) as parts
    from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)
)
select
    printf('dataset:%s/%s@%s', parts[-4], parts[-3], parts[-2]) as node,
    replace(parts[-1], '.parquet', '') as split,
    row_id, origin, session_id,
    unnest(case when len(interaction_ids) > 0 then interaction_ids else [null] end) as interaction_id
from read_rows
