-- Ids of the interactions of some days that `retired` does not have yet.
-- needs: interactions, retired
-- makes: rows (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri,
--     source_row, ts, content_sha256, removed_at)
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, now() as removed_at
from interactions
anti join retired using (workload, interaction_id)
