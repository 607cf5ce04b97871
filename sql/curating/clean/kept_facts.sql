-- Cleaned rows whose interaction was emptied of its text: they stay as they are. One part of the sessions.
-- needs: cleaned_interactions, interactions
-- parameters: $part, $parts
-- makes: rows (cleaned_interactions.*)
select cleaned_interactions.*
from cleaned_interactions
semi join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where hash(session_id) % $parts = $part
