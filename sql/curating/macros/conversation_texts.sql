-- A row's messages and its answer as one list: who spoke (the answer: the assistant) and what was said. The JSON is read
-- once. What is no list of messages, or no message, counts for nothing.
create or replace temp macro conversation_texts(messages, completion) as
    list_transform(
        list_concat(
            coalesce(try(json_transform(
                messages, '[{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}]'
            )), []),
            case when try(json_type(completion)) = 'OBJECT' then [struct_update(json_transform(
                completion, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
            ), role := 'assistant')] else [] end
        ),
        lambda message: struct_pack(role := message.role, content := message.content, said := message_text(message))
    )
