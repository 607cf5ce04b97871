-- Interactions of calls of the Gemini API.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('gemini')
