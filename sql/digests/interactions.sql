-- A slice's identity: its rows' ids, contents and the names that feedback may give them, sorted. How often it was rewritten
-- does not count.
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || to_json([request_id, alias_id, trace_id])::varchar as line
from interactions
order by dt, line
