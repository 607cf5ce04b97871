-- One quarantine row per staged row that failed a check, with the start of its record.
-- needs: lines, quarantined, staged
-- makes: rows into quarantined (object, row, error_code, message, raw)
insert into quarantined by name
select staged.object, staged.row, staged.error_code, staged.message, encode(lines.raw)[:4096] as raw
from staged
inner join lines using (object, row)
where staged.error_code <> 'skipped'
