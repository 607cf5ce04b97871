-- The texts that each conversation is measured by. Near duplicates are compared by `new_turn` (the messages after the last
-- answer, without system prompt) and `answer`. With the history, two turns of one conversation would look alike; with the
-- system prompt, all rows of a product would. said: the beginnings of the first messages of the user.
-- needs: conversation_with_identities(), conversations, new_messages()
-- makes: temp table texts (interaction_id, new_turn, new_role, instructions, answer, answer_text, normalised_sha256,
--     prompt_characters, completion_characters, prompt_messages, said)
create or replace temp table texts as
with conversations_read as (
    select
        interaction_id,
        completion,
        conversation_with_identities(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from conversations
),
split_texts as (
    select
        interaction_id,
        conversation,
        if(answered, conversation[1:-2], conversation) as prompt,
        if(answered, conversation[-1].text, null) as answer,
        case
            when not answered then null
            when contains(completion, '"tool_calls"') then coalesce(completion ->> '$.content', '')
            else conversation[-1].text
        end as answer_text
    from conversations_read
),
turns as (
    select
        *,
        list_filter(prompt, lambda message: message.role in ('system', 'developer')) as system_messages,
        new_messages(prompt) as new_messages_list
    from split_texts
)
select
    interaction_id,
    array_to_string(list_transform(new_messages_list, lambda message: message.text), ' ') as new_turn,
    new_messages_list[1].role as new_role,
    array_to_string(list_transform(system_messages, lambda message: message.text), ' ') as instructions,
    answer,
    answer_text,
    sha256(array_to_string(list_transform(conversation, lambda message: message.identity), ' ')) as normalised_sha256,
    coalesce(list_sum(list_transform(prompt, lambda message: length(message.text))), 0)::bigint as prompt_characters,
    coalesce(length(answer), 0) as completion_characters,
    len(prompt) as prompt_messages,
    list_transform(
        list_filter(prompt, lambda message: message.role = 'user')[1:5], lambda message: message.text[1:2000]
    ) as said
from turns
