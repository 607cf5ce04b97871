-- Rows and sessions of each split, by source.
-- needs: sampled
-- makes: rows (split, source, origin, rows, sessions)
select split, source, origin, count(*)::bigint as rows, count(distinct session_id)::bigint as sessions
from sampled
where chosen
group by split, source, origin
order by split, source, origin
