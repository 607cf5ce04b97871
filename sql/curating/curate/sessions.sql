-- Sessions, numbered from the oldest.
create or replace temp table sessions as
select session_id, row_number() over (order by min(ts) nulls last, session_id) as place
from entrants
group by session_id
