-- Rows that may contain personal data, in the order in which their session's placeholders are numbered, and the columns in
-- which it may be.
-- needs: conversations, suspects
-- makes: rows (interaction_id, session_id, dt, messages, tools, completion, reasoning, request, searched_messages,
--     searched_tools, searched_completion, searched_reasoning, searched_request)
select
    interaction_id, session_id, dt, messages, tools, completion, reasoning, request, searched_messages, searched_tools,
    searched_completion, searched_reasoning, searched_request
from conversations
inner join suspects using (interaction_id)
order by session_id, dt, ts, interaction_id
