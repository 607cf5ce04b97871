select
    workload_name as name, count(*) as rows, sum(tokens_in)::bigint as tokens_in, sum(tokens_out)::bigint as tokens_out,
    count(*) filter (has_failed) as failed
from sized
group by workload_name
order by rows desc, name
