-- Every point of a conversation where the assistant has just answered, with a hash of all messages up to there. is_answer: it is
-- the row's own answer. Seeds have no session. Clients repeat a history with every turn, so equal messages are normalised once.
-- needs: conversations, curated, message_identity(), message_text(), one_line()
-- makes: temp table prefixes (session_id, interaction_id, position, is_answer, prefix_hash)
create or replace temp table prefixes as
with conversations_read as (
    select
        interaction_id, coalesce(try_cast(messages as json[]), []) as prompt,
        if(try(json_type(completion)) = 'OBJECT', cast(completion as json), null) as answer
    from conversations
),
spread as (
    select interaction_id, unnest(prompt) as message, generate_subscripts(prompt, 1) as position, false as is_answer
    from conversations_read
    union all
    select interaction_id, answer, len(prompt) + 1, true
    from conversations_read
    where answer is not null
),
distinct_messages as (
    select message, is_answer, list(struct_pack(interaction_id, position)) as places
    from spread
    group by message, is_answer
),
parsed as (
    select
        places, is_answer, json_transform(
            message, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
        ) as message
    from distinct_messages
),
told as (
    select
        places, is_answer, if(is_answer, 'assistant', message.role) as role, message.content as content,
        one_line(message_text(message)) as line
    from parsed
),
identified as (
    select unnest(places) as place, is_answer, role, message_identity(role, line, content) as identity
    from told
),
hashed as (
    select
        place.interaction_id as interaction_id, place.position as position, is_answer, role,
        md5(string_agg(identity, '') over (partition by place.interaction_id order by place.position)) as prefix_hash
    from identified
)
select curated.session_id, hashed.interaction_id, hashed.position, hashed.is_answer, hashed.prefix_hash
from hashed
left join curated using (interaction_id)
where hashed.role = 'assistant'
