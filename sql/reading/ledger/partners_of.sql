-- Further listed objects that hold parts of rows together with the wanted ones.
-- needs: ledger, listed_objects, wanted_uris
-- parameters: $sources
-- makes: rows (*)
with pairs as (
    select uri, unnest(partners) as partner
    from ledger
    where len(partners) > 0
),

connected as (
    select pairs.partner as uri from pairs semi join wanted_uris on pairs.uri = wanted_uris.uri
    union
    select pairs.uri from pairs semi join wanted_uris on pairs.partner = wanted_uris.uri
)

select *
from ledger
semi join listed_objects using (source, uri)
semi join connected using (uri)
anti join wanted_uris using (uri)
where list_contains($sources, source)
order by source, uri
