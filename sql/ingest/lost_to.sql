-- Objects that lost a record to a copy in one of the given objects: when those change, they have to be read again.
select distinct detail ->> '$.uri' as uri
from decisions
where stage = 'ingest' and rule = 'repeated_record' and list_contains($uris, detail ->> '$.kept_uri')
