-- The kinds of parts of calls in the batch: span, event.
-- needs: span_sides
-- makes: rows (side)
select distinct side
from span_sides
