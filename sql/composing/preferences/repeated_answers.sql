-- Answers as later requests of a session repeat them: what the conversation went on from. `said` identifies the text.
-- needs: cleaned_interactions, conversation_with_identities()
-- makes: temp table repeated_answers (session_id, prompt, said, message, text)
create or replace temp table repeated_answers as
with histories as (
    -- no answer, but not the literal null, for which the macro cannot be bound
    select session_id, tools, messages, conversation_with_identities(messages, nullif(completion, completion)) as conversation
    from cleaned_interactions
    where status = 'ok'
),
places as (
    select *, unnest(range(2, len(conversation) + 1)) as place
    from histories
)
select
    session_id,
    md5(
        array_to_string(list_transform(conversation[1:place - 1], lambda message: message.identity), ' ') || chr(1)
        || coalesce(tools, '')
    ) as prompt,
    conversation[place].identity as said,
    any_value(cast(messages as json) -> (place - 1)) as message,
    any_value(conversation[place].text) as text
from places
where conversation[place].role = 'assistant'
group by all
