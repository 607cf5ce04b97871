-- Of the lines of a part that gave no row, those that are no JSON objects.
insert into quarantined by name
with present as (
    select object, row from staged semi join lines using (object, row)
    union all
    select object, row from checked_feedback semi join lines using (object, row)
),

absent as (
    select object, row, raw
    from lines
    anti join present using (object, row)
)

select
    object,
    row,
    case when json_valid(raw) then 'wrong_type' else 'malformed_json' end as error_code,
    case when json_valid(raw) then 'the record is JSON but no object' else 'the line is not valid JSON' end as message,
    encode(rtrim(raw, chr(10) || chr(13)))[:4096] as raw
from absent
where not (regexp_matches(raw, '^\s*\{') and json_valid(raw))
