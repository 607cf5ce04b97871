-- Gives the entries of objects with the content that was read their etag and time of now.
-- needs: ledger, listed
-- parameters: $uris
-- makes: update of ledger (etag, modified)
update ledger
set etag = listed.etag, modified = listed.modified
from listed
where ledger.source = listed.source and ledger.uri = listed.uri and list_contains($uris::varchar[], ledger.uri)
