-- Objects that the ledger did not know, of the size of one that is gone.
-- $source
create or replace temp table arrived as
select source, uri, bytes, etag, modified
from ledger
semi join fresh using (source, uri)
semi join gone using (bytes)
where source = $source
