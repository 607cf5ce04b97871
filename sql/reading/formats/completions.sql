-- name: interactions
-- Interactions of calls of the older /v1/completions.
select * from provider_calls('completions')
