-- name: pair_sides
-- Requests and responses of OpenAI's batch API, for resources/reading/pairing.py.
insert into pair_sides
with parsed as (
    select
        object, row, raw,
        json_transform(raw, '{"custom_id": "VARCHAR", "body": "JSON", "response": "JSON", "error": "JSON"}') as record
    from records
)
select
    'openai_batch' as form,
    object, row, case
        when record.custom_id is null then null
        when json_type(record.body) = 'OBJECT' then 'request'
        when json_type(record.response) = 'OBJECT' or json_type(record.error) = 'OBJECT' then 'response'
    end as side, record.custom_id as custom_id, raw
from parsed

-- name: pairs
-- Each request-response pair as one record of format openai_pairs.
create or replace temp table pairs as
select
    number, object, row,
    cast(json_object(
        'request', json_extract(request, '$.body'),
        'response', json_extract(response, '$.response.body'),
        'error', case when json_type(response, '$.error') = 'OBJECT' then json_extract(response, '$.error') end,
        'request_id', coalesce(response ->> '$.response.request_id', response ->> '$.id'),
        'trace_id', response ->> '$.id'
    ) as varchar) as raw,
    request,
    response
from matched_pairs
order by number
