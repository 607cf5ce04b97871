-- Requests of each workload and day, those that failed, tokens, users.
-- needs: interactions
-- makes: rows (workload, dt, requests, failed, prompt_tokens, answer_tokens, users)
select
    workload, dt, count(*) as requests, count(*) filter (where status <> 'success') as failed,
    sum(prompt_tokens) as prompt_tokens, sum(completion_tokens) as answer_tokens, count(distinct user_hash) as users
from interactions
group by all
order by all
