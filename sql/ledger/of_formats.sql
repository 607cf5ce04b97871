select *
from ledger
where list_contains($formats, format) and list_contains($sources, source)
order by source, uri
