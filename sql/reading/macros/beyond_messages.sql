-- Whether the provider counted prompt tokens that the record has no text for. No tokenizer makes more tokens than bytes, and most
-- make a fourth; 500 are for the template, and 500 for the instructions that come with tools. Pictures, files and hidden thoughts
-- count tokens without text; an earlier response, or text that is known to be elsewhere, explains them.
-- makes: macro beyond_messages(prompt_tokens, messages, tools, params)
create or replace temp macro beyond_messages(prompt_tokens, messages, tools, params) as
coalesce(
    prompt_tokens > 500 + strlen(messages) + coalesce(strlen(tools) + 500, 0) + coalesce(strlen(params ->> '$.response_format'), 0)
    and coalesce(
        params ->> '$.context.elsewhere', params ->> '$.context.previous_response_id', params ->> '$.context.hidden'
    ) is null
    and not regexp_matches(messages, '"type"\s*:\s*"[a-z_]*(image|file|audio|video|document)|sha256:'),
    false
)
