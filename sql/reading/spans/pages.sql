-- Pages of joined spans.
-- needs: joined_spans
-- makes: rows (number)
select distinct number
from joined_spans
order by number
