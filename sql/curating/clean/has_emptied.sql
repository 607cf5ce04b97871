-- A row if retention emptied any interaction of these days.
-- needs: interactions
-- makes: rows (found)
select true as found
from interactions
where emptied is not null
limit 1
