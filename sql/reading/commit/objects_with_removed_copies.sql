-- Objects with a record that was dropped as a copy of a record in `wanted_uris`: they must be read again when those change.
-- needs: decisions, wanted_uris
-- makes: rows (uri)
select distinct detail ->> '$.uri' as uri
from decisions
semi join wanted_uris on decisions.detail ->> '$.kept_uri' = wanted_uris.uri
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')
