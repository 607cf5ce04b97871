-- The conversations with personal data replaced, where there was any.
create or replace temp table cleaned as
select
    conversations.* exclude (messages, tools, completion, reasoning, prompt_token_ids, completion_token_ids),
    coalesce(redactions.messages, conversations.messages) as messages,
    coalesce(redactions.tools, conversations.tools) as tools,
    coalesce(redactions.completion, conversations.completion) as completion,
    coalesce(redactions.pii, cast(map {} as map(varchar, integer))) as pii
from conversations
left join redactions using (interaction_id)
