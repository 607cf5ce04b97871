-- Listed objects that were read as they are to be read now, of which only the time or the etag differs: their content decides.
-- needs: ledger, listed
-- parameters: $read_as
-- makes: rows (listed.*, content_sha256)
select listed.*, ledger.content_sha256
from listed
inner join ledger using (source, uri, bytes)
where ledger.state = 'read' and ledger.etag <> listed.etag and ledger.read_as = $read_as and ledger.content_sha256 <> ''
order by listed.uri
