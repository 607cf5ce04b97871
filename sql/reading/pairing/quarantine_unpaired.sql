-- Halves without their other one, and those that could belong to several.
insert into quarantined by name
with paired as (
    select object, row from pairing where candidates = 1
    union
    select asked_object, asked_row from pairing where candidates = 1
),

claimed as (
    select object, row from pairing
    union
    select asked_object, asked_row from pairing
)

select
    halves.object,
    halves.row,
    case
        when halves.side is null then 'missing_field'
        when claimed.object is not null then 'ambiguous_custom_id'
        else 'unpaired'
    end as error_code,
    case
        when halves.side is null then 'the line has no custom_id, or neither body nor response nor error'
        when claimed.object is not null then concat(
            'several requests of this folder have the custom_id ', halves.custom_id[:100],
            '; give a batch''s files one name (b1_input.jsonl, b1_output.jsonl) or a folder'
        )
        when halves.side = 'request' then concat('no response for the custom_id ', halves.custom_id[:100], ' in this folder')
        else concat('no request for the custom_id ', halves.custom_id[:100], ' in this folder')
    end as message,
    encode(halves.raw)[:4096] as raw
from halves
anti join paired using (object, row)
left join claimed using (object, row)
