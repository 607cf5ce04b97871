-- Lines that identify a slice of interactions: id, content, the ids that feedback may name, and the user. Rewriting or compacting the
-- table changes nothing.
-- needs: interactions
-- makes: rows (dt, line)
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || to_json([request_id, alias_id, trace_id, user_hash])::varchar as line
from interactions
order by dt, line
