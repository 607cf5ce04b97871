-- Each request-result pair as one record of format anthropic. A result without message is an error: its own, or its type
-- (canceled, expired).
-- needs: matched_pairs
-- makes: temp table pairs (number, object, row, raw)
create or replace temp table pairs as
select
    number,
    object,
    row,
    cast(json_object(
        'request', json_extract(request, '$.params'),
        'response', case
            when json_type(response, '$.result.message') = 'OBJECT' then json_extract(response, '$.result.message')
            else json_object('type', 'error', 'error', json_object('message', coalesce(
                response ->> '$.result.error.error.message', response ->> '$.result.error.message',
                response ->> '$.result.type'
            )))
        end
    ) as varchar) as raw
from matched_pairs
order by number
