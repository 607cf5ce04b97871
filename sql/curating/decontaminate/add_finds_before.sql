-- Adds the stored finds of unchanged days to `finds`.
-- needs: contamination, day_contents, finds
-- parameters: $searched
-- makes: rows into finds (interaction_id, suite, item_id, part, share, own, words, message)
insert into finds
select contamination.interaction_id, suite, item_id, part, share, own, words, message
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null
