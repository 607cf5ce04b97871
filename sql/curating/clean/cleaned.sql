-- Rows with personal data replaced.
-- needs: arrived, redactions
-- makes: temp view cleaned (arrived.*, messages, tools, completion, reasoning, request, pii)
create or replace temp view cleaned as
select
    arrived.* exclude (messages, tools, completion, reasoning, request),
    coalesce(redactions.messages, arrived.messages) as messages,
    coalesce(redactions.tools, arrived.tools) as tools,
    coalesce(redactions.completion, arrived.completion) as completion,
    coalesce(redactions.reasoning, arrived.reasoning) as reasoning,
    coalesce(redactions.request, arrived.request) as request,
    coalesce(redactions.pii, cast(map {} as map(varchar, integer))) as pii
from arrived
left join redactions using (interaction_id)
