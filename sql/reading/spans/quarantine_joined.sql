-- One quarantine row per row of joined spans that failed a check, with the start of its span.
-- needs: joined_spans, lines, quarantined, staged
-- makes: rows into quarantined (object, row, error_code, message, raw)
insert into quarantined by name
select
    staged.object,
    staged.row,
    staged.error_code,
    staged.message,
    encode(coalesce(joined_spans.item, joined_spans.events, lines.raw))[:4096] as raw
from staged
inner join lines using (object, row)
left join joined_spans
    on staged.object = joined_spans.object
    and staged.row = joined_spans.row
    and staged.part = joined_spans.place
where
    staged.error_code <> 'skipped'
    and (joined_spans.object is not null or staged.part > 1500000)  -- rows of other items of the line went there before
