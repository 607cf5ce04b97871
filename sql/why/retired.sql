-- Interactions whose rows retention removed: with an id (the first digits of an interaction's do), of a line, or of a list.
-- needs: retired
-- parameters: $identifier, $ids, $row, $uri
-- makes: rows (workload, interaction_id, source_uri, source_row, dt, removed_at)
select workload, interaction_id, source_uri, source_row, dt, removed_at
from retired
where $identifier in (interaction_id, request_id, alias_id, trace_id, session_id)
    or (regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier))
    or list_contains($ids, interaction_id)
    or (source_uri = $uri and source_row = $row)
order by ts, interaction_id
