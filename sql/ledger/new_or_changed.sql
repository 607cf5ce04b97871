-- Listed objects that the ledger does not know, or knows with another content.
select listed.*
from listed
left join ledger using (source, uri)
where ledger.uri is null or ledger.etag <> listed.etag or ledger.bytes <> listed.bytes
order by listed.source, listed.uri
