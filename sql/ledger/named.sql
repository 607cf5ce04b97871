select ledger.*
from ledger
semi join asked using (uri)
where list_contains($sources, source)
order by source, uri
