-- Rows, conversations and sessions of every split, by source.
select split, source, origin, count(*)::bigint as rows, count(distinct session_id)::bigint as sessions
from sampled
where chosen
group by split, source, origin
order by split, source, origin
