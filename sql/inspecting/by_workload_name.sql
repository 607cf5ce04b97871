-- Rows, tokens and failures by the workload that the log names.
-- needs: sized
-- makes: rows (name, rows, tokens_in, tokens_out, failed)
select
    workload_name as name, count(*) as rows, sum(tokens_in)::bigint as tokens_in, sum(tokens_out)::bigint as tokens_out,
    count(*) filter (has_failed) as failed
from sized
group by workload_name
order by rows desc, name
