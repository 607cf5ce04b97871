-- Objects that lost a record to a copy in one of those asked about: when those change, they have to be read again.
select distinct detail ->> '$.uri' as uri
from decisions
semi join asked on decisions.detail ->> '$.kept_uri' = asked.uri
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')
