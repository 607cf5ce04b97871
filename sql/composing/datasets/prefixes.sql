-- Every point of a conversation where the assistant has just answered, with a hash of all messages up to there. is_answer: it is
-- the row's own answer. Seeds have no session.
-- needs: curated, messages
-- makes: temp table prefixes (session_id, interaction_id, position, is_answer, prefix_hash)
create or replace temp table prefixes as
with conversations_read as (
    select
        interaction_id, position, is_answer, role,
        md5(string_agg(identity, '') over (partition by interaction_id order by position)) as prefix_hash
    from messages
)
select
    curated.session_id, conversations_read.interaction_id, conversations_read.position, conversations_read.is_answer,
    conversations_read.prefix_hash
from conversations_read
left join curated using (interaction_id)
where conversations_read.role = 'assistant'
