-- For reading/ties/interaction_ids.sql: all interactions as they were read, of whatever workload.
create or replace temp view conversations as
select workload, interaction_id, request_id, alias_id, trace_id, session_id
from interactions
