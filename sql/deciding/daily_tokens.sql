-- Requests and answer tokens of some days of the traffic. A row without a count of tokens counts as the mean of the others.
-- needs: interactions
-- makes: rows (requests, answer_tokens)
select
    count(*) as requests, coalesce(avg(completion_tokens) * count(*), 0.0)::double as answer_tokens
from interactions
