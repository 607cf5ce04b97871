-- Ids of all interactions, also of those whose rows retention removed: datasets may still hold them.
-- needs: interactions, retired
-- makes: temp view known_interactions (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash,
--     source, source_uri, source_row, ts, content_sha256)
create or replace temp view known_interactions as
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256
from interactions
union all by name
select * from retired anti join interactions using (workload, interaction_id)
