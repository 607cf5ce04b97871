-- Interactions of calls of Amazon Bedrock.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('bedrock')
