-- The OpenAI role for a data set's name of the speaker (ShareGPT's human and gpt, OASST's prompter, ...); null for unknown
-- names.
-- makes: macro openai_role(speaker)
create or replace temp macro openai_role(speaker) as
case lower(trim(speaker))
    when 'human' then 'user' when 'user' then 'user' when 'prompter' then 'user'
    when 'gpt' then 'assistant' when 'assistant' then 'assistant' when 'chatgpt' then 'assistant'
    when 'bing' then 'assistant' when 'bard' then 'assistant' when 'model' then 'assistant' when 'bot' then 'assistant'
    when 'ai' then 'assistant'
    when 'function_call' then 'assistant' when 'tool_call' then 'assistant'
    when 'system' then 'system' when 'developer' then 'developer'
    when 'tool' then 'tool' when 'observation' then 'tool' when 'function' then 'tool'
    when 'function_response' then 'tool' when 'tool_response' then 'tool'
end
