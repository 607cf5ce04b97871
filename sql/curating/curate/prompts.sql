-- Prompt and answer of each row that reached curation, as hashes.
-- needs: cleaned_interactions, conversation_with_identities()
-- makes: temp table prompts (interaction_id, prompt, answer)
create or replace temp table prompts as
with conversations_read as (
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
from conversations_read
where len(conversation) > 1
