select ledger.*
from ledger
semi join asked using (uri)
semi join seen using (source, uri)
where list_contains($sources, source)
order by source, uri
