-- A row's messages and its answer as one list; fields stay JSON. The JSON is parsed once. Anything that is not a list of
-- messages, or not a message, is left out.
-- makes: macro conversation_of(messages, completion)
create or replace temp macro conversation_of(messages, completion) as
    list_concat(
        coalesce(try(json_transform(
            messages, '[{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}]'
        )), []),
        case when try(json_type(completion)) = 'OBJECT' then [struct_update(json_transform(
            completion, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
        ), role := 'assistant')] else [] end
    )
