-- Of the lines of a part, those that are no JSON objects.
insert into quarantined by name
select
    object,
    row,
    case when json_valid(raw) then 'wrong_type' else 'malformed_json' end as error_code,
    case when json_valid(raw) then 'the record is JSON but no object' else 'the line is not valid JSON' end as message,
    encode(rtrim(raw, chr(10) || chr(13)))[:4096] as raw
from lines
anti join records using (object, row)
