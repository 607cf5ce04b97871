-- A message of a data set, {role, content, ...} or ShareGPT's {from, value}, in the OpenAI shape. `place` numbers the message:
-- a tool result belongs to the call right before it. An unknown role, or a call that is not JSON, gives a message without role.
-- needs: openai_role()
-- makes: macro openai_message(message, place)
create or replace temp macro openai_message(message, place) as
case
    when json_type(message) <> 'OBJECT' or json_extract(message, '$.from') is null then message
    when lower(message ->> '$.from') in ('function_call', 'tool_call')
        and json_type(try_cast(message ->> '$.value' as json), '$.name') = 'VARCHAR'
        then to_json(struct_pack(
            "role" := 'assistant',
            "content" := cast(null as varchar),
            "tool_calls" := [struct_pack(
                "id" := concat('call_', place),
                "type" := 'function',
                "function" := struct_pack(
                    "name" := try_cast(message ->> '$.value' as json) ->> '$.name',
                    "arguments" := coalesce(
                        try_cast(message ->> '$.value' as json) ->> '$.arguments',
                        try_cast(message ->> '$.value' as json) ->> '$.parameters',
                        '{}'
                    )
                )
            )]
        ))
    when lower(message ->> '$.from') in ('function_call', 'tool_call')
        then to_json(struct_pack("content" := json_extract(message, '$.value')))
    when openai_role(message ->> '$.from') = 'tool' then to_json(struct_pack(
        "role" := 'tool', "content" := json_extract(message, '$.value'), "tool_call_id" := concat('call_', place - 1)
    ))
    when json_extract(message, '$.weight') is not null then to_json(struct_pack(
        "role" := openai_role(message ->> '$.from'),
        "content" := json_extract(message, '$.value'),
        "weight" := json_extract(message, '$.weight')
    ))
    else to_json(struct_pack("role" := openai_role(message ->> '$.from'), "content" := json_extract(message, '$.value')))
end
