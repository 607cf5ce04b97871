-- Partitions of `feedback` that lose rows: objects read again, and what was read earlier about records that are erased now.
-- needs: feedback, newly_erased_ids, reread
-- makes: temp table rewritten (workload, dt)
create or replace temp table rewritten as
select distinct workload, dt
from feedback
semi join reread on feedback.source_uri = reread.uri
union
select distinct workload, dt
from feedback
where coalesce(
        interaction_id in (select id from newly_erased_ids) or given_id in (select id from newly_erased_ids)
        or request_id in (select id from newly_erased_ids) or trace_id in (select id from newly_erased_ids)
        or session_id in (select id from newly_erased_ids), false
    )
