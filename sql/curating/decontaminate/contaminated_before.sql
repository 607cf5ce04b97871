-- What earlier searches for the same items found in days that are still the same.
create or replace temp table contaminated as
select contamination.interaction_id, suite, item_id, part, share
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
