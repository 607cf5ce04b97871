-- Whether any interaction goes on from an earlier response.
-- needs: interactions
-- makes: rows (found)
select count(*) > 0 as found
from interactions
where contains(params, '"previous_response_id"')
