-- What the search found, and that the days without finds were searched.
select
    $workload as workload, dt, $searched as searched, content, contaminated.interaction_id, suite, item_id, part, share
from contaminated
join cleaned_interactions using (interaction_id)
join day_contents using (dt)
union all
select $workload, dt, $searched, content, null, null, null, null, null
from days_to_search
join day_contents using (dt)
