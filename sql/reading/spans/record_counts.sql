-- What to add to the number of records of each object. The first item of a line was counted with the line; a log record that
-- is part of another record is none of its own, and a further span that is skipped is one.
-- needs: joined_spans, ranked_sides
-- makes: rows (object, added)
select
    ranked_sides.object,
    count(*) filter (ranked_sides.side = 'span' and ranked_sides.place > 0)
    - count(*) filter (ranked_sides.side = 'event' and ranked_sides.place = 0) as added
from ranked_sides
anti join joined_spans using (object, row, place)
group by ranked_sides.object
