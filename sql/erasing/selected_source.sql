-- Interactions of the sources of which only counts stay.
-- needs: asked_sources, interactions
-- makes: temp table selected (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source,
--     source_uri, source_row, ts, content_sha256, because)
create or replace temp table selected as
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, 'asked' as because
from interactions
semi join asked_sources using (workload, source)
