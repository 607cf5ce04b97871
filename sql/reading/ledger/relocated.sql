-- The entries of moved objects as they are to be: what was known of each, under the uri, etag and time of now. One that was read
-- with other settings waits to be read again.
-- $read_as
create or replace temp table relocated as
select
    known.* replace (
        found.uri as uri, found.etag as etag, found.modified as modified,
        case when known.read_as = $read_as then 'read' else 'found' end as state
    )
from moved
inner join ledger as known on known.uri = moved.old_uri
inner join ledger as found on found.uri = moved.uri
