-- Entries of moved objects under their new uri, etag and time. An object that was read with other settings waits to be read
-- again.
-- needs: ledger, moved
-- parameters: $read_as
-- makes: temp table relocated (known.*)
create or replace temp table relocated as
select
    known.* replace (
        listed_now.uri as uri, listed_now.etag as etag, listed_now.modified as modified,
        case when known.read_as = $read_as then 'read' else 'found' end as state
    )
from moved
inner join ledger as known on known.uri = moved.old_uri
inner join ledger as listed_now on listed_now.uri = moved.uri
