-- Everything that is said in the rows to be searched, message by message, but for a product's instructions. What a tool is
-- called with is read a second time with JSON's escapes undone: "\nthe" is not the word "nthe".
with told as (
    select
        row_id,
        list_concat(
            coalesce(try(json_transform(
                messages, '[{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}]'
            )), []),
            case when try(json_type(completion)) = 'OBJECT' then [struct_update(json_transform(
                completion, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
            ), role := 'assistant')] else [] end
        ) as conversation
    from searched_rows
),
messages as (
    select row_id, unnest(conversation) as message
    from told
),
texts as (
    select
        row_id,
        message_text(message) as said,
        case when message.tool_calls is not null or message.function_call is not null then
            list_concat(
                coalesce(message.tool_calls ->> '$[*].function.arguments', []), [message.function_call ->> '$.arguments']
            )
        end as called_with
    from messages
    where coalesce(message.role, '') not in ('system', 'developer')
)
select row_id, said from texts
union all
select row_id, array_to_string(try_cast(arguments as json) ->> '$.*', ' ')
from (select row_id, unnest(called_with) as arguments from texts where called_with is not null)
where arguments is not null
