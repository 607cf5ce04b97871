-- One quarantine row per row that failed a check, with the start of its record.
insert into quarantined by name
select
    checked.object,
    checked.row,
    checked.error_code,
    checked.message,
    encode(records.raw)[:4096] as raw
from checked
inner join records using (object, row)
where checked.error_code is not null
