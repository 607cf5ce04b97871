-- What was asked and what was answered in each row that reached curation: the prompt as one hash, the answer as another.
create or replace temp table prompts as
with told as (
    select interaction_id, messages, completion, tools, conversation_with_identities(messages, completion) as conversation
    from cleaned_interactions
    where status = 'ok' and try(json_type(completion)) = 'OBJECT'
)
select
    interaction_id,
    md5(
        array_to_string(list_transform(conversation[1:-2], lambda message: message.identity), ' ') || chr(1) || coalesce(tools, '')
    ) as prompt,
    conversation[-1].identity as answer
from told
where len(conversation) > 1
