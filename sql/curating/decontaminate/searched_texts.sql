-- Everything that is said in the rows to be searched, message by message, but for a product's instructions. What holds JSON's
-- escapes (a tool call, a record in a prompt, whole, cut short or after a sentence) is read a second time with them undone:
-- "\nthe" is not the word "nthe". By pattern, not by parsing: JSON in prose is no JSON document.
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
    select row_id, message_text(message) as said
    from messages
    where coalesce(message.role, '') not in ('system', 'developer')
),
unescaped as (  -- but for \u00e9, which the JSON reader undoes where nothing is left that it would stumble over
    select row_id, regexp_replace(regexp_replace(said, '\\["\\/bfnrt]', ' ', 'g'), '["\x00-\x1f]', ' ', 'g') as said
    from texts
    where contains(said, '\')
)
select row_id, said from texts
union all
select row_id, case when contains(said, '\u') then coalesce(try_cast('"' || said || '"' as json) ->> '$', said) else said end
from unescaped
