-- Each request-result pair as one record of format anthropic, at the result's place, numbered from 0. A result without message
-- is an error: its own, or its type (canceled, expired).
-- needs: pair_matches, pair_sides
-- makes: temp table pairs (number, object, row, raw)
create or replace temp table pairs as
with numbered as (
    select *, row_number() over (order by object, row) - 1 as number
    from pair_matches
    where candidates = 1
)

select
    numbered.number,
    numbered.object,
    numbered.row,
    cast(json_object(
        'request', json_extract(requests.raw, '$.params'),
        'response', case
            when json_type(responses.raw, '$.result.message') = 'OBJECT' then json_extract(responses.raw, '$.result.message')
            else json_object('type', 'error', 'error', json_object('message', coalesce(
                responses.raw ->> '$.result.error.error.message', responses.raw ->> '$.result.error.message',
                responses.raw ->> '$.result.type'
            )))
        end
    ) as varchar) as raw
from numbered
inner join pair_sides as requests on requests.object = numbered.request_object and requests.row = numbered.request_row
inner join pair_sides as responses on responses.object = numbered.object and responses.row = numbered.row
order by numbered.number
