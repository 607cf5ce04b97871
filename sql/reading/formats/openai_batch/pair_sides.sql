-- Requests and responses of OpenAI's batch API, for resources/reading/pairing.py.
-- needs: pair_sides, records
-- makes: rows into pair_sides (form, object, row, side, custom_id, raw)
insert into pair_sides
with parsed as (
    select
        object,
        row,
        raw,
        json_transform(raw, '{"custom_id": "VARCHAR", "body": "JSON", "response": "JSON", "error": "JSON"}') as record
    from records
)

select
    'openai_batch' as form,
    object,
    row,
    case
        when record.custom_id is null then null
        when json_type(record.body) = 'OBJECT' then 'request'
        when json_type(record.response) = 'OBJECT' or json_type(record.error) = 'OBJECT' then 'response'
    end as side,
    record.custom_id as custom_id,
    raw
from parsed
