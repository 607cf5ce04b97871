-- name: pair_sides
-- Requests and results of Anthropic's Message Batches API, for resources/reading/pairing.py.
insert into pair_sides
with parsed as (
    select
        object, row, raw,
        json_transform(raw, '{"custom_id": "VARCHAR", "params": "JSON", "result": "JSON"}') as record
    from records
)
select
    'anthropic_batch' as form,
    object, row, case
        when record.custom_id is null then null
        when json_type(record.result, '$.type') = 'VARCHAR' then 'response'
        when json_type(record.params) = 'OBJECT' then 'request'
    end as side, record.custom_id as custom_id, raw
from parsed

-- name: pairs
-- Each request-result pair as one record of format anthropic. A result without message is an error: its own, or its type
-- (canceled, expired).
create or replace temp table pairs as
select
    number, object, row,
    cast(json_object(
        'request', json_extract(request, '$.params'),
        'response', case
            when json_type(response, '$.result.message') = 'OBJECT' then json_extract(response, '$.result.message')
            else json_object('type', 'error', 'error', json_object('message', coalesce(
                response ->> '$.result.error.error.message', response ->> '$.result.error.message',
                response ->> '$.result.type'
            )))
        end
    ) as varchar) as raw,
    request,
    response
from matched_pairs
order by number
