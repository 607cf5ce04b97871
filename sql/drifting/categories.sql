-- The categories that a test tells apart: those of the most sessions. All others count as one. Named by a hash, because names are
-- kept when their rows are gone (chosen_window.py), and a name of a prompt shape or tool may be a user's.
-- needs: traffic
-- parameters: $most
-- makes: rows (test, category)
with marks as (
    select session, 'prompt_shapes' as test, prompt_shape as category from traffic
    union all
    select session, 'language', language from traffic
    union all
    select session, 'tools', unnest(tools) from traffic
),
counted as (
    select test, category, count(distinct session) as sessions from marks where category is not null group by test, category
)
select test, left(sha256(category), 16) as category
from counted
qualify row_number() over (partition by test order by sessions desc, counted.category) <= $most
order by test, counted.category
