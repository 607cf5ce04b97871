-- The rows that may hold personal data, in the order in which their sessions' placeholders are numbered.
select interaction_id, session_id, dt, messages, tools, completion
from conversations
where interaction_id in (select interaction_id from suspects)
order by session_id, dt, ts, interaction_id
