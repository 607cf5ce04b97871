-- Sessions, numbered from the oldest.
-- needs: candidates
-- makes: temp table sessions (session_id, place)
create or replace temp table sessions as
select session_id, row_number() over (order by min(ts) nulls last, session_id) as place
from candidates
group by session_id
