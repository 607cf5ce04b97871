-- The lines of a page of joined spans.
-- needs: joined_spans
-- parameters: $number
-- makes: rows (object, row, raw)
select object, row, coalesce(min(item), min(events)) as raw
from joined_spans
where number = $number
group by object, row
order by object, row
