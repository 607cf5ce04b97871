-- Log objects that a path may mean: the first of its spellings that exists, else objects whose uri ends like it. $spellings: in
-- order of preference. $ending: null to match whole uris only
-- needs: objects
-- parameters: $ending, $spellings
-- makes: rows (*)
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
