-- Rows, tokens and failures by day.
-- needs: sized
-- makes: rows (day, rows, tokens_in, tokens_out, failed)
select
    dt as day, count(*) as rows, sum(tokens_in)::bigint as tokens_in, sum(tokens_out)::bigint as tokens_out,
    count(*) filter (has_failed) as failed
from sized
group by dt
order by dt
