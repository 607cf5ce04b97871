-- Rows of a dataset by split, source and reason.
-- parameters: $files
-- makes: rows (split, source, reason, rows)
with counted as (
    select split, source, reason, count(*)::bigint as rows
    from read_parquet($files, union_by_name = true)
    group by all
)
select split, source, reason, rows
from counted
order by list_position(['train', 'validation', 'test'], split), rows desc, source, reason
