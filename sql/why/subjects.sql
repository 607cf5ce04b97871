-- Ids, session, user, model and time of some interactions, for the heading.
-- needs: interactions
-- parameters: $ids
-- makes: rows (interaction_id, workload, ts, request_id, session_id, source, source_format, source_uri, source_row, model,
--     prompt_tokens, completion_tokens, finish_reason)
select
    interaction_id, workload, ts, request_id, session_id, source, source_format, source_uri, source_row, model,
    prompt_tokens, completion_tokens, finish_reason
from interactions
where list_contains($ids, interaction_id)
