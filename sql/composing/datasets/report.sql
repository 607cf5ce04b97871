-- Rows and sessions of each split, by source and reason.
-- needs: sampled
-- makes: rows (split, source, origin, synthetic, reason, rows, repeats, sessions)
select
    split, source, origin, synthetic, reason, count(*)::bigint as rows, (sum(copies) - count(*))::bigint as repeats,
    count(distinct session_id)::bigint as sessions
from sampled
where copies > 0
group by all
order by all
