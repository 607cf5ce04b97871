-- Personal data by kind: number of values and of rows. The values themselves are not stored.
-- needs: cleaned_interactions
-- makes: rows (kind, found, rows)
with found as (
    select interaction_id, unnest(map_entries(pii)) as entry from cleaned_interactions
)
select entry.key as kind, sum(entry.value)::bigint as found, count(distinct interaction_id) as rows
from found
group by kind
order by found desc, kind
