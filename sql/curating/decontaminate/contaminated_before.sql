-- Stored finds of earlier searches for the same items, in days that have not changed.
-- needs: contamination, day_contents
-- parameters: $searched
-- makes: temp table contaminated (interaction_id, suite, item_id, part, share)
create or replace temp table contaminated as
select contamination.interaction_id, suite, item_id, part, share
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
