-- What servers reported by day: acceptance length and tokens per second.
-- needs: serving_metrics
-- makes: rows (dt, acceptance_length, tokens_per_second)
select
    cast(window_start as date) as dt,
    1 + sum(accepted_tokens) / nullif(sum(drafts), 0) as acceptance_length,
    avg(tokens_per_second) filter (tokens_per_second > 0) as tokens_per_second
from serving_metrics
where window_end >= window_start
group by dt
order by dt
