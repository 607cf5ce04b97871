-- Some lines with joined spans.
-- needs: joined_spans
-- parameters: $begin, $number
-- makes: rows (object, row, raw)
select object, row, coalesce(min(item), min(events)) as raw
from joined_spans
where number >= $begin and number < $begin + $number
group by object, row
order by object, row
