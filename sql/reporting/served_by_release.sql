-- What servers reported of each release: acceptance length (tokens per forward of the target) and speed.
-- needs: serving_metrics
-- makes: rows (release, drafts, acceptance_length, tokens_per_second, first_seen, last_seen)
select
    release,
    sum(drafts)::bigint as drafts,
    1 + sum(accepted_tokens) / nullif(sum(drafts), 0) as acceptance_length,
    avg(tokens_per_second) filter (tokens_per_second > 0) as tokens_per_second,
    min(window_start) as first_seen,
    max(window_end) as last_seen
from serving_metrics
where release is not null and window_end >= window_start
group by release
order by first_seen
