-- Rows that were logged as token ids.
-- needs: interactions
-- makes: temp table logged_tokens (interaction_id, prompt_token_ids, completion_token_ids, params)
create or replace temp table logged_tokens as
select interaction_id, prompt_token_ids, completion_token_ids, params
from interactions
where status = 'tokens'
