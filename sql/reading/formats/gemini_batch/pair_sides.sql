-- Requests and results of Gemini's batches, for resources/reading/pairing.py.
-- needs: pair_sides, records
-- makes: rows into pair_sides (form, object, row, side, custom_id, raw)
insert into pair_sides
with parsed as (
    select
        object,
        row,
        raw,
        json_transform(raw, '{"key": "VARCHAR", "request": "JSON", "response": "JSON", "error": "JSON"}') as record
    from records
)

select
    'gemini_batch' as form,
    object,
    row,
    case
        when record.key is null then null
        when json_type(record.response) = 'OBJECT' or json_type(record.error) = 'OBJECT' then 'response'
        when json_type(record.request) = 'OBJECT' then 'request'
    end as side,
    record.key as custom_id,
    raw
from parsed
