-- Objects outside the batch whose records were read while their id still seemed to identify them.
-- needs: batch, decisions, interactions, loose_ids
-- makes: rows (uri)
select source_uri as uri
from interactions
semi join loose_ids using (workload, interaction_id)
anti join batch on interactions.source_uri = batch.uri
union
select decisions.detail ->> '$.uri' as uri
from decisions
semi join loose_ids using (workload, interaction_id)
anti join batch on decisions.detail ->> '$.uri' = batch.uri
where decisions.stage = 'ingest'
