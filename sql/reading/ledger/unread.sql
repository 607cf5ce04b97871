-- Objects that wait to be read.
-- needs: ledger
-- makes: rows (source, uri, etag)
select source, uri, etag
from ledger
where state <> 'read'
order by uri, source
