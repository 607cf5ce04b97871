-- Listed objects of some formats, and some by name, whose partners are listed too.
-- needs: ledger, listed_objects, wanted_uris
-- parameters: $formats, $sources
-- makes: rows (*)
with chosen as (
    select *
    from ledger
    semi join listed_objects using (source, uri)
    where
        list_contains($sources, source)
        and (list_contains($formats, format) or uri in (select uri from wanted_uris))
),

torn as (
    select held.uri
    from (select uri, unnest(partners) as partner from chosen) as held
    anti join listed_objects on held.partner = listed_objects.uri
)

select *
from chosen
anti join torn using (uri)
order by source, uri
