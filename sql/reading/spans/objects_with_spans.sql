-- Objects with spans that take log records.
-- needs: ranked_sides
-- makes: rows (object)
select distinct object
from ranked_sides
where side = 'span'
