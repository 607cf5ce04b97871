-- Listed objects that are new, changed, listed under another source, or were read with other settings; with how they were read.
-- needs: ledger, listed
-- parameters: $read_as
-- makes: rows (source, uri, bytes, etag, modified, format, read_as, partners)
with known as (
    select listed.*, ledger.* exclude (uri) rename (source as was_source, etag as was_etag, bytes as was_bytes, modified as was_modified)
    from listed
    left join ledger on ledger.uri = listed.uri
    qualify row_number() over (partition by listed.uri order by ledger.source = listed.source desc nulls last) = 1
)

select source, uri, bytes, etag, modified, coalesce(format, '') as format, coalesce(read_as, '') as read_as,
    coalesce(partners, []) as partners
from known
where was_source is distinct from source or was_etag <> etag or was_bytes <> bytes
    or (state = 'read' and read_as is distinct from $read_as)
order by source, uri
