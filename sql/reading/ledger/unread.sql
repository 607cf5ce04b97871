select source, uri, etag
from ledger
where state <> 'read'
order by uri, source
