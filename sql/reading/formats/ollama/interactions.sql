-- Interactions of calls of Ollama's own API.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('ollama')
