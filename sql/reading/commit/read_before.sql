-- Waiting objects that already left rows in a table: read in another state, or by a run that was killed.
-- needs: decisions, feedback, interactions, quarantine, waiting
-- makes: temp table read_before (uri)
create or replace temp table read_before as
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
