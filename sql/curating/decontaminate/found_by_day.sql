-- Rows for the table `contamination`: the finds, and one row without interaction_id for every day that was searched.
-- needs: cleaned_rows, day_contents, days_to_search, finds
-- parameters: $searched, $workload
-- makes: rows (workload, dt, searched, content, interaction_id, suite, item_id, part, share, own, words, message)
select
    $workload as workload, dt, $searched as searched, content, finds.interaction_id, suite, item_id, part, share, own, words,
    message
from finds
join cleaned_rows using (interaction_id)
join day_contents using (dt)
union all
select $workload, dt, $searched, content, null, null, null, null, null, null, null, null
from days_to_search
join day_contents using (dt)
