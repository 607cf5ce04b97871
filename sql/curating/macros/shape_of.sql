-- Prompt shape: what the session asks for (row_topics), or the tool whose result a turn brings, and a hash of client, instructions
-- (numbers aside) and tools. Rows of one shape share a quota when rows are sampled. A tool result names its tool itself, or the call
-- before it does; up to three results may follow one message.
-- makes: macro shape_of(new_role, topic, messages, tools, client, instructions)
create or replace temp macro shape_of(new_role, topic, messages, tools, client, instructions) as
    case
        when new_role in ('tool', 'function') then concat_ws(' ', 'result of', coalesce(
            messages ->> '$[#-1].name',
            messages ->> '$[#-2].tool_calls[0].function.name',
            messages ->> '$[#-3].tool_calls[0].function.name',
            messages ->> '$[#-4].tool_calls[0].function.name',
            'a tool'
        ))
        else coalesce(topic, '')
    end || '#' || md5(concat_ws(
        chr(1), coalesce(client, ''), regexp_replace(coalesce(instructions, ''), '[0-9]+', '0', 'g'),
        array_to_string(list_sort(try_cast(tools as json) ->> '$[*].function.name'), ',')
    ))[1:8]
