-- Every changed row.
-- needs: row_changes
-- makes: rows (row_id, change, from_split, to_split, source, reason)
select row_id, change, from_split, to_split, source, reason
from row_changes
order by list_position(['added', 'removed', 'moved', 'changed', 'repeated'], change), row_id
