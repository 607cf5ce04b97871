-- Curated rows and seeds whose repeated turns are searched. A seed's answer is its last message.
-- needs: curated, seeds
-- makes: temp view conversations (interaction_id, messages, completion)
create or replace temp view conversations as
select interaction_id, messages, completion from curated
union all
select row_id, messages, null from seeds
