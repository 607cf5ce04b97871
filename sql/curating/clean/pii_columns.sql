-- The columns that are searched for personal data.
-- needs: conversations
-- makes: rows (interaction_id, messages, tools, completion, reasoning, request)
select interaction_id, messages, tools, completion, reasoning, request from conversations
