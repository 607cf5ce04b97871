-- Everything that is said in the rows to be searched, message by message, but for a product's instructions. What a tool is
-- called with is read a second time with JSON's escapes undone: "\nthe" is not the word "nthe".
with messages as (
    select row_id, unnest(coalesce(try_cast(messages as json[]), [])) as message
    from searched_rows
    union all
    select row_id, try_cast(completion as json)
    from searched_rows
),
calls as (
    select row_id, unnest(message ->> '$.tool_calls[*].function.arguments') as arguments
    from messages
    where contains(message::varchar, '"tool_calls"')
)
select row_id, message_text(message) as said
from messages
where coalesce(message ->> '$.role', 'assistant') not in ('system', 'developer')
union all
select row_id, array_to_string(arguments::json ->> '$.*', ' ')
from calls
where json_valid(arguments)
