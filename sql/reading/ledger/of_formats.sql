select *
from ledger
semi join seen using (source, uri)
where list_contains($formats, format) and list_contains($sources, source)
order by source, uri
