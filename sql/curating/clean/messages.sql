-- Every message of every conversation, the answer last: role, text, and the hash by which equal messages are recognised.
-- needs: conversation_with_identities(), conversations
-- makes: temp table messages (interaction_id, position, is_answer, role, text, identity)
create or replace temp table messages as
with conversations_read as (
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
    from conversations_read
)
select
    interaction_id,
    position,
    position > prompt_messages as is_answer,
    message.role,
    message.text,
    message.identity
from spread
