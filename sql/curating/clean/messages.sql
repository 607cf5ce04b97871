-- Every message of every conversation, and the answer as the last one: who spoke, what was said, and what makes it the same.
create or replace temp table messages as
with told as (
    select
        interaction_id,
        conversation_with_identities(messages, completion) as conversation,
        try(json_type(completion)) = 'OBJECT' as answered
    from conversations
),
spread as (
    select
        interaction_id,
        len(conversation) - if(answered, 1, 0) as prompt_messages,
        unnest(conversation) as message,
        generate_subscripts(conversation, 1) as position
    from told
)
select
    interaction_id,
    position,
    position > prompt_messages as is_answer,
    message.role,
    message.said,
    message.identity
from spread
