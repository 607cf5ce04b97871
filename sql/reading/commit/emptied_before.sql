-- Interactions of the batch that retention has emptied, with what such a row keeps.
-- needs: interactions, known_ids
-- makes: temp table emptied_before (workload, dt, interaction_id, content_sha256, params, prompt_token_ids, completion_token_ids,
--     emptied)
create or replace temp table emptied_before as
select workload, dt, interaction_id, content_sha256, params, prompt_token_ids, completion_token_ids, emptied
from interactions
semi join known_ids using (workload, interaction_id)
where emptied is not null
