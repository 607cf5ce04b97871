-- What a message in the OpenAI shape says, as one text: its content (a string, or the text of its parts) and its tool
-- calls' names and arguments.
create or replace temp macro message_text(message) as
    concat_ws(
        ' ',
        case json_type(message, '$.content')
            when 'VARCHAR' then message ->> '$.content'
            when 'ARRAY' then array_to_string(message ->> '$.content[*].text', ' ')
        end,
        array_to_string(message ->> '$.tool_calls[*].function.name', ' '),
        array_to_string(message ->> '$.tool_calls[*].function.arguments', ' '),
        message ->> '$.function_call.name',
        message ->> '$.function_call.arguments'
    )
