-- One quarantine row per row that failed a check, with the start of its record.
insert into quarantined by name
select staged.object, staged.row, staged.error_code, staged.message, encode(records.raw)[:4096] as raw
from staged
inner join records using (object, row)
where staged.error_code is not null
