-- A message of a data set, {role, content, ...} or ShareGPT's {from, value}, in the OpenAI shape. An unknown role gives a message
-- without role.
-- needs: openai_role()
-- makes: macro openai_message(message)
create or replace temp macro openai_message(message) as
case
    when json_type(message) <> 'OBJECT' or json_extract(message, '$.from') is null then message
    when json_extract(message, '$.weight') is not null then to_json(struct_pack(
        "role" := openai_role(message ->> '$.from'),
        "content" := json_extract(message, '$.value'),
        "weight" := json_extract(message, '$.weight')
    ))
    else to_json(struct_pack("role" := openai_role(message ->> '$.from'), "content" := json_extract(message, '$.value')))
end
