-- Stored finds for the same items, in days as they are now.
-- needs: contamination, day_contents
-- parameters: $searched
-- makes: temp table finds (interaction_id, suite, item_id, part, share, own, words, message)
create or replace temp table finds as
select contamination.interaction_id, suite, item_id, part, share, own, words, message
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
