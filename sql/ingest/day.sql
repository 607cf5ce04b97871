-- One partition as it will be: what was there and stays, and what this batch brings.
select interactions.*
from interactions
anti join reread on interactions.source_uri = reread.uri
anti join (select workload, interaction_id from judged where not fresh and not kept) as beaten
    using (workload, interaction_id)
where workload = $workload and dt = $dt
union all by name
select staged.* exclude (object, row, part, error_code, message)
from staged
semi join (
    select source_uri, source_row, place_in_row from judged where fresh and kept
) as winners
    on staged.source_uri = winners.source_uri
    and staged.source_row = winners.source_row
    and staged.part = winners.place_in_row
where staged.workload = $workload and staged.dt = $dt
order by ts, interaction_id
