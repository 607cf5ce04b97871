-- Interactions with an id, and the kind of that id; the most specific kind that matches.
-- needs: cleaned_interactions, decisions_history, interactions
-- parameters: $identifier
-- makes: rows (interaction_id, telling, what, ts)
with named as (
    select interaction_id, ts, 1 as telling, 'interaction' as what from interactions where interaction_id = $identifier
    union
    select interaction_id, null, 1, 'interaction' from decisions_history where interaction_id = $identifier
    union
    select interaction_id, ts, 2, 'request' from interactions where request_id = $identifier
    union
    select interaction_id, ts, 2, 'request' from interactions where alias_id = $identifier
    union
    select interaction_id, ts, 3, 'trace' from interactions where trace_id = $identifier
    union
    select interaction_id, ts, 4, 'session' from interactions where session_id = $identifier
    union
    select interaction_id, ts, 4, 'session' from cleaned_interactions where session_id = $identifier
    union
    select interaction_id, ts, 5, 'interaction' from interactions
    where regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier)
    union
    select interaction_id, null, 5, 'interaction' from decisions_history
    where regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier)
)
select interaction_id, telling, any_value(what) as what, min(ts) as ts
from named
where telling = (select min(telling) from named)
group by interaction_id, telling
order by ts, interaction_id
