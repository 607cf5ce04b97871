-- name: interactions
-- Interactions of runs of LangSmith.
select * from provider_calls('langsmith')
