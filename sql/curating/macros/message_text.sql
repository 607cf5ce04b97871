-- A message as one text: its content (a string, or the text of its parts) and its tool calls' names and arguments. `message`
-- has content, tool_calls and function_call as JSON.
-- makes: macro message_text(message)
create or replace temp macro message_text(message) as
    case
        when message.tool_calls is null and message.function_call is null and starts_with(message.content::varchar, '"')
            then message.content ->> '$'
        else concat_ws(
            ' ',
            case left(message.content::varchar, 1)
                when '"' then message.content ->> '$'
                when '[' then array_to_string(list_filter(message.content ->> '$[*].text', lambda part: part is not null), ' ')
            end,
            nullif(array_to_string(message.tool_calls ->> '$[*].function.name', ' '), ''),
            nullif(array_to_string(message.tool_calls ->> '$[*].function.arguments', ' '), ''),
            message.function_call ->> '$.name',
            message.function_call ->> '$.arguments'
        )
    end
