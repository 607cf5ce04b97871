-- Drafts and accepted tokens of a release by hour of the window's start. $release null: of the release that was served last.
-- A window that ends before it begins (a clock went backwards), or that accepted more than was drafted, is left out, and so is
-- one of more than an hour (nobody read it meanwhile), which belongs to no hour. SGLang does not count drafted tokens.
-- needs: serving_metrics
-- parameters: $release
-- makes: rows (hour, drafts, accepted_tokens)
with chosen as (
    select coalesce($release, arg_max(release, window_end)) as release from serving_metrics
)
select date_trunc('hour', window_start) as hour, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens
from serving_metrics
join chosen on serving_metrics.release is not distinct from chosen.release
where window_end > window_start and window_end - window_start <= interval 1 hour and drafts > 0
    and accepted_tokens between 0 and coalesce(draft_tokens, accepted_tokens)
group by hour
order by hour
