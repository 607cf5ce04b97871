-- Interactions of runs of LangSmith.
-- needs: provider_calls()
-- makes: rows (*)
select * from provider_calls('langsmith')
