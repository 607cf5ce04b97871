-- Requests by day: failed ones, tokens, users, latency, cost as logged. Without answers of `millrace chat` ($chats).
-- needs: interactions
-- parameters: $chats
-- makes: rows (dt, requests, failed, prompt_tokens, answer_tokens, users, p50_ms, p95_ms, ttft_ms, cost)
select
    dt,
    count(*) as requests,
    count(*) filter (where status <> 'success') as failed,
    coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
    coalesce(sum(completion_tokens), 0)::bigint as answer_tokens,
    count(distinct user_hash) as users,
    quantile_cont(latency_ms, 0.5) as p50_ms,
    quantile_cont(latency_ms, 0.95) as p95_ms,
    quantile_cont(ttft_ms, 0.5) as ttft_ms,
    sum(cost) as cost
from interactions
where source is distinct from $chats
group by dt
order by dt
