-- Numbers of changed rows, by change, splits, source and reason.
-- needs: row_changes
-- makes: rows (change, from_split, to_split, source, reason, rows)
with counted as (
    select change, from_split, to_split, source, reason, count(*)::bigint as rows
    from row_changes
    group by all
)
select change, from_split, to_split, source, reason, rows
from counted
order by list_position(['added', 'removed', 'moved', 'changed', 'repeated'], change), rows desc, from_split, to_split, source, reason
