-- Adds the stored finds of unchanged days to `contaminated`.
-- needs: contaminated, contamination, day_contents
-- parameters: $searched
-- makes: rows into contaminated (interaction_id, suite, item_id, part, share)
insert into contaminated
select contamination.interaction_id, suite, item_id, part, share
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
