-- Number of choices, turns and spans beyond the first of their record, by object.
-- needs: staged, staged_feedback
-- makes: rows (object, count_star)
with parts as (
    select object from staged where part > 0
    union all
    select object from staged_feedback where part > 0 and not extra and not copied
)

select object, count(*)
from parts
group by object
