-- Rows that may contain personal data, in the order in which their session's placeholders are numbered.
-- needs: conversations, suspects
-- makes: rows (interaction_id, session_id, dt, messages, tools, completion, reasoning, request)
select interaction_id, session_id, dt, messages, tools, completion, reasoning, request
from conversations
where interaction_id in (select interaction_id from suspects)
order by session_id, dt, ts, interaction_id
