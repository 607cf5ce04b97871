-- One quarantine row per row of a part that failed a check, with the start of its record.
insert into quarantined by name
select staged.object, staged.row, staged.error_code, staged.message, encode(lines.raw)[:4096] as raw
from staged
inner join lines using (object, row)
where staged.error_code <> 'skipped'
