-- name: interactions
-- Interactions of calls of Ollama's own API.
select * from provider_calls('ollama')
