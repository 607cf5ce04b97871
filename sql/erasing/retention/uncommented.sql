-- The feedback of a day without comments.
-- needs: feedback
-- makes: rows (*)
select * replace (cast(null as varchar) as comment)
from feedback
