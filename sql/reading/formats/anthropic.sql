-- name: interactions
-- Interactions of calls of Anthropic's Messages API.
select * from provider_calls('anthropic')
