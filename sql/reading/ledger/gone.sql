-- Read objects that their source no longer lists, if a new object has the same size.
-- needs: ledger, listed_objects, new_objects
-- parameters: $source
-- makes: temp table gone (uri, bytes, etag, content_sha256)
create or replace temp table gone as
with arriving_sizes as (
    select ledger.source, ledger.bytes
    from ledger
    semi join new_objects using (source, uri)
)

select uri, bytes, etag, content_sha256
from ledger
semi join arriving_sizes using (source, bytes)
where source = $source and state = 'read'
    and not exists (select 1 from listed_objects where listed_objects.source = ledger.source and listed_objects.uri = ledger.uri)
