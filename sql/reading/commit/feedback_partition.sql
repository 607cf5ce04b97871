-- A partition of `feedback` after this batch, without what was read earlier about records that are erased now.
-- needs: feedback, new_feedback, newly_erased_ids, reread
-- parameters: $dt, $workload
-- makes: rows (*)
select *
from feedback
anti join reread on feedback.source_uri = reread.uri
where workload = $workload and dt = $dt
    and not coalesce(
        interaction_id in (select id from newly_erased_ids) or given_id in (select id from newly_erased_ids)
        or request_id in (select id from newly_erased_ids) or trace_id in (select id from newly_erased_ids)
        or session_id in (select id from newly_erased_ids), false
    )
union all by name
select *
from new_feedback
where workload = $workload and dt = $dt
