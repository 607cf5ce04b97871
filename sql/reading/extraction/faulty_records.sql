-- Records that their format could not extract.
-- needs: checked_feedback, lines, pair_sides, staged
-- makes: rows (object, row, raw)
with faulty as (
    select object, row from staged where error_code <> 'skipped'
    union
    select object, row from checked_feedback where error_code is not null and not extra
    union
    select object, row from pair_sides where side is null
)

select object, row, raw
from lines
semi join faulty using (object, row)
