-- What a request gave the chat template besides messages and tools, as JSON text; null if nothing. vLLM and SGLang take
-- chat_template_kwargs, documents and continue_final_message at the top level, clients of OpenAI's library send them as extra_body.
-- makes: macro request_of(params)
create or replace temp macro request_of(params) as
    nullif(cast(json_merge_patch('{}', json_object(
        'chat_template_kwargs', coalesce(params -> '$.chat_template_kwargs', params -> '$.extra_body.chat_template_kwargs'),
        'documents', coalesce(params -> '$.documents', params -> '$.extra_body.documents'),
        'reasoning_effort', params -> '$.reasoning_effort',
        'response_format', params -> '$.response_format',
        'continue_final_message', case when coalesce(
            params ->> '$.continue_final_message', params ->> '$.extra_body.continue_final_message') = 'true' then true end
    )) as varchar), '{}')
