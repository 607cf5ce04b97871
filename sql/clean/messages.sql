-- Every message of every conversation, and the answer as the last one: who spoke, what was said, and what makes it the same.
create or replace temp table messages as
with parsed as (
    select
        interaction_id,
        coalesce(try_cast(messages as json[]), []) as prompt,
        case when json_valid(completion) and json_type(completion) = 'OBJECT' then [cast(completion as json)] else [] end
            as answer
    from conversations
),
spread as (
    select
        interaction_id,
        len(prompt) as prompt_messages,
        unnest(list_concat(prompt, answer)) as message,
        generate_subscripts(list_concat(prompt, answer), 1) as position
    from parsed
)
select
    interaction_id,
    position,
    position > prompt_messages as is_answer,
    case when position > prompt_messages then 'assistant' else message ->> '$.role' end as role,
    message_text(message) as said,
    message_identity(message) as identity
from spread
