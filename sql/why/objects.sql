-- The log objects that a person may mean by a path: the first of its spellings that is one, else those that end like it.
-- $spellings, in the order in which they count; $ending, null where the end of a uri will not do
with named as (
    select
        workload, uri, state, rows, days, format, problem, list_position($spellings, nfc_normalize(uri)) as place
    from objects
    where list_contains($spellings, nfc_normalize(uri)) or ends_with(nfc_normalize(uri), $ending)
)

select * exclude (place)
from named
where place is not distinct from (select min(place) from named)
order by uri, workload
