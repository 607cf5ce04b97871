-- Decisions of cleaning on rows whose interaction was emptied of its text. One part of them.
-- needs: decisions, interactions
-- parameters: $part, $parts
-- makes: rows (decisions.*)
select decisions.*
from decisions
semi join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where stage = 'clean' and hash(interaction_id) % $parts = $part
