-- name: pair_sides
-- Requests and results of Gemini's batches, for resources/reading/pairing.py.
insert into pair_sides
with parsed as (
    select
        object, row, raw,
        json_transform(raw, '{"key": "VARCHAR", "request": "JSON", "response": "JSON", "error": "JSON"}') as record
    from records
)
select
    'gemini_batch' as form,
    object, row, case
        when record.key is null then null
        when json_type(record.response) = 'OBJECT' or json_type(record.error) = 'OBJECT' then 'response'
        when json_type(record.request) = 'OBJECT' then 'request'
    end as side, record.key as custom_id, raw
from parsed

-- name: pairs
-- Each request-result pair as one record of format gemini.
create or replace temp table pairs as
select
    number, object, row,
    cast(json_object(
        'request', json_extract(request, '$.request'),
        'response', coalesce(json_extract(response, '$.response'), '{}'),
        'error', json_extract(response, '$.error')
    ) as varchar) as raw,
    request,
    response
from matched_pairs
order by number
