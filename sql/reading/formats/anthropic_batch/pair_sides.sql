-- Requests and results of Anthropic's Message Batches API, for resources/reading/pairing.py.
-- needs: pair_sides, records
-- makes: rows into pair_sides (form, object, row, side, custom_id, raw)
insert into pair_sides
with parsed as (
    select
        object,
        row,
        raw,
        json_transform(raw, '{"custom_id": "VARCHAR", "params": "JSON", "result": "JSON"}') as record
    from records
)

select
    'anthropic_batch' as form,
    object,
    row,
    case
        when record.custom_id is null then null
        when json_type(record.result, '$.type') = 'VARCHAR' then 'response'
        when json_type(record.params) = 'OBJECT' then 'request'
    end as side,
    record.custom_id as custom_id,
    raw
from parsed
