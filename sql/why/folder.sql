-- Number of log objects in a folder, by any of its spellings, else by the end of its path, and the first of them. $spellings,
-- $ending: end with a slash
-- needs: objects
-- parameters: $ending, $spellings
-- makes: rows (objects, first_uri)
with known as (
    select distinct uri, nfc_normalize(uri) as path from objects
),

inside as (
    select uri, true as is_exact
    from known
    where len(list_filter($spellings, lambda folder: starts_with(path, folder))) > 0
    union all
    select uri, false
    from known
    where contains(path, $ending)
)

select count(distinct uri) as objects, min(uri) as first_uri
from inside
where is_exact or not exists (from inside where is_exact)
