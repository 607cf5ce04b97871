-- Entries of the wanted uris that the sources still list.
-- needs: ledger, listed_objects, wanted_uris
-- parameters: $sources
-- makes: rows (ledger.*)
select ledger.*
from ledger
semi join wanted_uris using (uri)
semi join listed_objects using (source, uri)
where list_contains($sources, source)
order by source, uri
