-- All that is searched for personal data.
select interaction_id, messages, tools, completion from conversations
