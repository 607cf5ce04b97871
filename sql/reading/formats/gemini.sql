-- name: interactions
-- Interactions of calls of the Gemini API.
select * from provider_calls('gemini')
