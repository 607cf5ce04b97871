-- name: interactions
-- Interactions of calls of Amazon Bedrock.
select * from provider_calls('bedrock')
