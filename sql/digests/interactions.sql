-- Lines that identify a slice of interactions: id, content, and the ids that feedback may name. Rewriting or compacting the
-- table changes nothing.
-- needs: interactions
-- makes: rows (dt, line)
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || to_json([request_id, alias_id, trace_id])::varchar as line
from interactions
order by dt, line
