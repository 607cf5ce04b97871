-- Of the objects that wait, those that left rows in a table before: read in another state, or by a run that was killed.
create or replace temp table earlier as
select source_uri as uri from interactions semi join waiting on interactions.source_uri = waiting.uri
union
select source_uri as uri from feedback semi join waiting on feedback.source_uri = waiting.uri
union
select source_uri as uri from quarantine semi join waiting on quarantine.source_uri = waiting.uri
union
select detail ->> '$.uri' as uri
from decisions
semi join waiting on decisions.detail ->> '$.uri' = waiting.uri
where stage = 'ingest'
