-- All ids by which feedback may name each of `conversations`, and how specific they are (id_rank 1 is the most specific).
-- needs: conversations
-- makes: temp view interaction_ids (workload, interaction_id, id_rank, tie, named_id)
create or replace temp view interaction_ids as
select workload, interaction_id, 1 as id_rank, 'interaction' as tie, interaction_id as named_id from conversations
union all
select workload, interaction_id, 2, 'request', request_id from conversations where request_id is not null
union all
select workload, interaction_id, 2, 'gateway', alias_id from conversations where alias_id is not null
union all
select workload, interaction_id, 3, 'trace', trace_id from conversations where trace_id is not null
union all
select workload, interaction_id, 4, 'session', session_id from conversations where session_id is not null
