-- The first answered requests of a table, as rows of a conversation dataset whose answer stands apart.
-- needs: interactions
-- makes: rows (row_id, messages, completion, tools, ts)
select interaction_id as row_id, messages, completion, tools, ts
from interactions
where completion is not null and status = 'success'
order by ts nulls last, row_id
limit 200
