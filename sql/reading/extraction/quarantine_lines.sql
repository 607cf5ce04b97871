-- Lines that are not JSON objects, as quarantine rows.
-- needs: lines_without_record, quarantined
-- makes: rows into quarantined (object, row, error_code, message, raw)
insert into quarantined by name
select
    object,
    row,
    case when is_json then 'wrong_type' else 'malformed_json' end as error_code,
    case when is_json then 'the record is JSON but no object' else 'the line is not valid JSON' end as message,
    encode(rtrim(raw, chr(10) || chr(13)))[:4096] as raw
from lines_without_record
