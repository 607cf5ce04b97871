-- Interactions that an id means: their own id, at least 8 of its first digits, or the id of their request.
-- needs: interactions
-- parameters: $identifier
-- makes: rows (interaction_id, exact)
select distinct interaction_id, interaction_id = $identifier or request_id = $identifier as exact
from interactions
where interaction_id = $identifier or request_id = $identifier
    or length($identifier) >= 8 and starts_with(interaction_id, $identifier)
order by exact desc, interaction_id
