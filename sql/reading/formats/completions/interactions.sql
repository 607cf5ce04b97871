-- Interactions of calls of the older /v1/completions.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('completions')
