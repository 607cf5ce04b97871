-- Rows for the table `contamination`: the finds, and one row without interaction_id for every day that was searched.
-- needs: cleaned_rows, contaminated, day_contents, days_to_search
-- parameters: $searched, $workload
-- makes: rows (workload, dt, searched, content, interaction_id, suite, item_id, part, share)
select
    $workload as workload, dt, $searched as searched, content, contaminated.interaction_id, suite, item_id, part, share
from contaminated
join cleaned_rows using (interaction_id)
join day_contents using (dt)
union all
select $workload, dt, $searched, content, null, null, null, null, null
from days_to_search
join day_contents using (dt)
