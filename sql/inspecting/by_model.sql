-- Rows, tokens and failures by model.
-- needs: sized
-- makes: rows (name, rows, tokens_in, tokens_out, failed)
select
    model as name, count(*) as rows, sum(tokens_in)::bigint as tokens_in, sum(tokens_out)::bigint as tokens_out,
    count(*) filter (has_failed) as failed
from sized
group by model
order by rows desc, name
