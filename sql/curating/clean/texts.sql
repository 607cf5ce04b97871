-- One row for each conversation: the texts its facts are taken from.
-- Near-duplicates are judged by `new_turn`, what is NEW in this request (the messages after the last answer, but no system
-- prompt), and by `answer`. With the history in it, two turns of one conversation would be alike for what they
-- share; with the system prompt in it, so would all rows of a product.
create or replace temp table texts as
with told as (
    select
        interaction_id,
        completion,
        conversation_with_identities(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from conversations
),
halves as (
    select
        interaction_id,
        conversation,
        if(answered, conversation[1:-2], conversation) as prompt,
        if(answered, conversation[-1].said, null) as answer,
        case
            when not answered then null
            when contains(completion, '"tool_calls"') then coalesce(completion ->> '$.content', '')
            else conversation[-1].said
        end as spoken
    from told
),
turns as (
    select
        *,
        list_filter(prompt, lambda message: message.role in ('system', 'developer')) as ruling,
        new_messages(prompt) as new
    from halves
)
select
    interaction_id,
    array_to_string(list_transform(new, lambda message: message.said), ' ') as new_turn,
    new[1].role as new_role,
    array_to_string(list_transform(ruling, lambda message: message.said), ' ') as instructions,
    answer,
    spoken,
    sha256(array_to_string(list_transform(conversation, lambda message: message.identity), ' ')) as normalised_sha256,
    coalesce(list_sum(list_transform(prompt, lambda message: length(message.said))), 0)::bigint as prompt_characters,
    coalesce(length(answer), 0) as completion_characters,
    len(prompt) as prompt_messages
from turns
