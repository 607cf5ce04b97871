-- Objects that were read and are not in their source's listing any more, where an unknown one of the same size is.
-- $source
create or replace temp table gone as
with arriving_sizes as (
    select ledger.source, ledger.bytes
    from ledger
    semi join fresh using (source, uri)
)

select uri, bytes, etag, content_sha256
from ledger
semi join arriving_sizes using (source, bytes)
where source = $source and state = 'read'
    and not exists (select 1 from seen where seen.source = ledger.source and seen.uri = ledger.uri)
