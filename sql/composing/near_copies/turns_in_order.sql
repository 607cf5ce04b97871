-- The compared turns in order of place.
-- needs: compared, compared_turns
-- makes: rows (row_id, new_turn, answer)
select row_id, new_turn, answer
from compared
join compared_turns using (row_id)
order by place
