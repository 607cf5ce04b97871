-- The same, beside what was found just now.
insert into contaminated
select contamination.interaction_id, suite, item_id, part, share
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
