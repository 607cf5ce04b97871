-- Tool calls in the OpenAI shape, whether the function is a nested object or its name is next to the id. Null for none.
-- makes: macro openai_tool_calls(calls)
create or replace temp macro openai_tool_calls(calls) as
case when len(calls) > 0 then to_json(list_transform(
    calls,
    lambda call: case
        when json_type(call, '$.function') = 'OBJECT' then call
        else to_json(struct_pack(
            "id" := coalesce(call ->> '$.id', call ->> '$.call_id'),
            "type" := 'function',
            "function" := struct_pack(
                "name" := call ->> '$.name',
                "arguments" := coalesce(call ->> '$.arguments', call ->> '$.args', call ->> '$.input', '{}')
            )
        ))
    end
)) end
