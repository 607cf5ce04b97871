-- Healthy rows sampled by hash up to $characters of text, as input of curating/clean/messages.sql.
-- needs: cleaned_interactions, interactions
-- parameters: $characters
-- makes: temp table conversations (*)
create or replace temp table conversations as
with drawn as (
    select
        interactions.interaction_id, interactions.messages, interactions.tools, interactions.completion,
        interactions.prompt_token_ids, interactions.completion_token_ids,
        coalesce(interactions.workload_name, '') as workload_name, cleaned_interactions.prompt_shape as shape,
        md5(interactions.interaction_id) as draw,
        length(interactions.messages) + length(coalesce(interactions.tools, '')) + length(interactions.completion) as characters
    from interactions
    join cleaned_interactions using (interaction_id)
    where cleaned_interactions.status = 'ok'
)
select *
from drawn
qualify sum(characters) over (order by draw rows unbounded preceding) - characters < $characters
