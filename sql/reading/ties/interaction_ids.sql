-- The ids by which feedback may name each of `conversations`, and how telling they are.
create or replace temp view feedback_names as
select workload, interaction_id, 1 as telling, 'interaction' as tie, interaction_id as about from conversations
union all
select workload, interaction_id, 2, 'request', request_id from conversations where request_id is not null
union all
select workload, interaction_id, 2, 'gateway', alias_id from conversations where alias_id is not null
union all
select workload, interaction_id, 3, 'trace', trace_id from conversations where trace_id is not null
union all
select workload, interaction_id, 4, 'session', session_id from conversations where session_id is not null
