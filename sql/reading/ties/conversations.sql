-- All interactions as read, of every workload, as input of reading/ties/interaction_ids.sql.
-- needs: interactions
-- makes: temp view conversations (workload, interaction_id, request_id, alias_id, trace_id, session_id)
create or replace temp view conversations as
select workload, interaction_id, request_id, alias_id, trace_id, session_id
from interactions
