-- A partition of `interactions` after this batch.
-- needs: interactions, new_interactions, reread, row_decisions
-- parameters: $dt, $workload
-- makes: rows (interactions.*)
select interactions.*
from interactions
anti join reread on interactions.source_uri = reread.uri
anti join (select workload, interaction_id from row_decisions where not fresh and not kept) as replaced
    using (workload, interaction_id)
where workload = $workload and dt = $dt
union all by name
select *
from new_interactions
where workload = $workload and dt = $dt
