-- Interactions of calls of Anthropic's Messages API.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('anthropic')
