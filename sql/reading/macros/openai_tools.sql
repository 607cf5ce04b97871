-- Tools in the OpenAI shape, from a list, its JSON text, or the bare functions of older requests. A custom tool, whose input is a
-- text, is a function with the argument `input`.
-- makes: macro openai_tools(tools)
create or replace temp macro openai_tools(tools) as
to_json(list_transform(
    case json_type(tools)
        when 'ARRAY' then try_cast(tools as json[])
        when 'VARCHAR' then try_cast(nullif(tools ->> '$', '') as json[])
    end,
    lambda tool: case
        when tool ->> '$.type' = 'custom' then to_json(struct_pack("type" := 'function', "function" := json_merge_patch(
            '{}', json_object(
                'name', coalesce(tool ->> '$.custom.name', tool ->> '$.name'),
                'description', coalesce(tool ->> '$.custom.description', tool ->> '$.description')
            ),
            '{"parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}}'
        )))
        when json_extract(tool, '$.function') is null and json_extract(tool, '$.name') is not null
            then to_json(struct_pack("type" := 'function', "function" := tool))
        else tool
    end
))
